#include "whole_step.hpp"

#include "learning_rate.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace pianola::bench {
namespace {

// As in Mlp: the weights hardly move, so that the work stays the same over thousands of steps.

}  // namespace

WholeStep::WholeStep(Model model, at::Tensor input, Update update)
    : model_(std::move(model)), parameters_(model_.parameters()), input_(std::move(input)) {
  if (update == Update::none) return;
  target_ = input_.flip(0);  // any will do that is not the input itself
  if (update == Update::adam) {
    adam_.emplace(parameters_);
  } else {
    learning_rate_ = at::full({}, kLearningRate, input_.options());
  }
}

void WholeStep::run() {
  if (!target_.defined()) {
    const c10::NoGradGuard no_grad;
    output_ = model_(input_);
    return;
  }
  const at::Tensor output = model_(input_);
  const at::Tensor loss = at::mse_loss(output, target_);
  update(torch::autograd::grad({loss}, parameters_));
  output_ = output.detach();
  loss_ = loss.detach();
}

void WholeStep::update(const std::vector<at::Tensor>& gradients) {
  if (adam_) return adam_->step(gradients);
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].sub_(at::mul(gradients[i], learning_rate_));
}

std::vector<at::Tensor> WholeStep::state() const {
  std::vector<at::Tensor> state = {output_};
  if (!target_.defined()) return state;
  state.push_back(loss_);
  const std::vector<at::Tensor> trained = adam_ ? adam_->state() : parameters_;
  state.insert(state.end(), trained.begin(), trained.end());
  return state;
}

}  // namespace pianola::bench
