#include "training.hpp"

#include "learning_rate.hpp"
#include "transformer.hpp"

#include <pianola/core/error.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <fmt/format.h>

namespace pianola::bench {
namespace {

// As in Mlp: the weights hardly move, so that the work stays the same over thousands of steps.

std::vector<GraphedCallable> capture(const Model& model, const at::Tensor& input, Graphed graphed) {
  if (graphed == Graphed::nothing) return {};
  if (graphed == Graphed::whole) return make_graphed_callables({model.whole()}, {{input}});
  std::vector<Callable> layers = model.per_layer();
  // What a layer gets from the one before it requires grad.
  std::vector<std::vector<c10::IValue>> samples = {{input}};
  for (std::size_t i = 1; i < layers.size(); ++i) samples.push_back({input.clone().requires_grad_()});
  return make_graphed_callables(std::move(layers), samples);
}

}  // namespace

Adam::Adam(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  for (const at::Tensor& parameter : parameters_) {
    averages_.push_back(at::zeros_like(parameter.detach()));
    square_averages_.push_back(at::zeros_like(parameter.detach()));
    steps_.push_back(at::zeros({}, at::TensorOptions(parameter.device()).dtype(at::kFloat)));
  }
}

void Adam::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void Adam::step() {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  step(gradients);
}

void Adam::step(const std::vector<at::Tensor>& gradients) {
  const c10::NoGradGuard no_grad;
  at::_foreach_add_(steps_, 1);
  at::_fused_adam_(parameters_, gradients, averages_, square_averages_, /*max_exp_avg_sqs=*/{}, steps_, kLearningRate,
                   /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0, /*eps=*/1e-8, /*amsgrad=*/false,
                   /*maximize=*/false);
}

std::vector<at::Tensor> Adam::state() const {
  std::vector<at::Tensor> state;
  for (const auto* part : {&parameters_, &averages_, &square_averages_, &steps_}) {
    state.insert(state.end(), part->begin(), part->end());
  }
  return state;
}

TrainingCase training_case(const std::string& model, c10::Device device) {
  if (model == "mlp") {
    const at::Tensor both = fixed_batch({2, /*batch=*/32, ChainShape{}.width}, device);
    return {[device] { return linear_chain({}, device); }, both[0], both[1]};
  }
  if (model == "transformer") {
    const at::Tensor both = fixed_batch({2, /*batch=*/2, /*sequence=*/64, TransformerShape{}.width}, device);
    return {[device] { return transformer({}, device); }, both[0], both[1]};
  }
  throw UsageError({.what = fmt::format("model must be mlp or transformer, got '{}'", model)});
}

Training::Training(Model model, at::Tensor input, at::Tensor target, Graphed graphed)
    : model_(std::move(model)),
      input_(std::move(input)),
      target_(std::move(target)),
      callables_(capture(model_, input_, graphed)),
      adam_(model_.parameters()) {}

at::Tensor Training::forward(const at::Tensor& input) {
  if (callables_.empty()) return model_(input);
  at::Tensor x = input;
  for (GraphedCallable& callable : callables_) x = callable(x);
  return x;
}

void Training::step(const at::Tensor& input, const at::Tensor& target) {
  adam_.zero_grad();
  const at::Tensor loss = at::mse_loss(forward(input), target);
  loss.backward();
  adam_.step();
  loss_ = loss.detach();
}

std::vector<at::Tensor> Training::state() const {
  std::vector<at::Tensor> state = adam_.state();
  state.push_back(loss_);
  return state;
}

}  // namespace pianola::bench
