#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace pianola::bench {

struct MlpShape {
  std::int64_t layers = 16;
  std::int64_t width = 64;
  std::int64_t batch = 32;
};

/// A chain of linear layers with ReLU between, one batch for it, and AdamW with its state. Two of one shape are equal
/// bit for bit.
class Mlp {
 public:
  Mlp(const MlpShape& shape, c10::Device device);

  at::Tensor forward() const;
  /// Forward, mean squared error, backward and fused AdamW, all on the device.
  void train_step();

  /// Loss of the last step.
  [[nodiscard]] const at::Tensor& loss() const { return loss_; }
  /// All that train_step() writes: parameters, AdamW's moments and step counters, and the loss.
  [[nodiscard]] std::vector<at::Tensor> state() const;

 private:
  void update(const std::vector<at::Tensor>& gradients);

  at::Tensor input_;
  at::Tensor target_;
  at::Tensor learning_rate_;
  at::Tensor loss_;
  std::vector<at::Tensor> parameters_;  // weight and bias of each layer
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;
};

/// @throws Error  A tensor differs from its counterpart in any bit.
void check_equal(const char* what, const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected);

}  // namespace pianola::bench
