#pragma once
#include <apps/demo/char_gpt.hpp>

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace pianola::demo {

/// AdamW with all of its state on the device, learning rate and step counters included, so that its step can be
/// captured: torch::optim::AdamW keeps both on the host, where a graph would freeze them.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.99;
    double eps = 1e-8;
    double weight_decay = 0.1;
  };

  AdamW(std::span<const NamedTensor> parameters, const Options& options);

  /// Changes the parameters. `gradients` are in the order of the parameters.
  void step(const std::vector<at::Tensor>& gradients);
  /// Takes effect with the next step; does not synchronize.
  void set_learning_rate(double rate);
  /// Moments, step counters and the learning rate.
  [[nodiscard]] std::vector<NamedTensor> state() const;

 private:
  Options options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;
  at::Tensor learning_rate_;
};

/// Learning rate at `step` of `steps`: a linear warm-up, then half a cosine down to a tenth of `peak`.
[[nodiscard]] double learning_rate(std::int64_t step, std::int64_t steps, double peak);

}  // namespace pianola::demo
