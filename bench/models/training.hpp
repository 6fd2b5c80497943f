#pragma once
#include "model.hpp"

#include <pianola/callable/graphed_callable.hpp>

#include <functional>
#include <string>
#include <vector>

namespace pianola::bench {

/// Fused Adam with its state.
class Adam {
 public:
  explicit Adam(std::vector<at::Tensor> parameters);

  /// Sets the gradients to none.
  void zero_grad();
  /// Takes the parameters' own gradients.
  void step();
  /// Takes these, one for each parameter.
  void step(const std::vector<at::Tensor>& gradients);

  /// All that step() writes: parameters, moments, step counters.
  [[nodiscard]] std::vector<at::Tensor> state() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;
};

/// What is trained, and on what.
struct TrainingCase {
  std::function<Model()> model;  ///< Equal ones at each call.
  at::Tensor input;
  at::Tensor target;
};

/// @param model  "mlp": 16 x 64, batch 32; "transformer": 8 x 256, batch 2 x 64.
/// @throws UsageError  There is no such model.
TrainingCase training_case(const std::string& model, c10::Device device);

/// What of the forward and backward passes is graphed.
enum class Graphed { nothing, whole, per_layer };

/// A training step that is not one graph: gradients to none, forward, mean squared error, backward, Adam. Only the
/// model is graphed, if anything is.
class Training {
 public:
  /// `input` is a batch for the model; the target has its shape.
  Training(Model model, at::Tensor input, at::Tensor target, Graphed graphed);

  void step() { step(input_, target_); }
  /// With this batch, of the same shapes.
  void step(const at::Tensor& input, const at::Tensor& target);

  [[nodiscard]] const at::Tensor& input() const { return input_; }
  [[nodiscard]] const at::Tensor& target() const { return target_; }
  /// Loss of the last step.
  [[nodiscard]] const at::Tensor& loss() const { return loss_; }
  /// The loss, and all that Adam writes.
  [[nodiscard]] std::vector<at::Tensor> state() const;

 private:
  at::Tensor forward(const at::Tensor& input);

  Model model_;
  at::Tensor input_;
  at::Tensor target_;
  std::vector<GraphedCallable> callables_;
  Adam adam_;
  at::Tensor loss_;
};

}  // namespace pianola::bench
