#include "iteration.hpp"

#include "learning_rate.hpp"

#include <pianola/training/clip_grad.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace pianola::bench {
namespace {

// As in Mlp: the weights hardly move, so that the work stays the same over thousands of iterations.

std::vector<c10::IValue> values_of(const at::Tensor& microbatches) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& one : microbatches.unbind()) values.emplace_back(one.clone());
  return values;
}

}  // namespace

Iteration::Iteration(Model model, at::Tensor microbatches, Checks checks)
    : model_(std::move(model)),
      checks_(checks),
      microbatches_(values_of(microbatches)),
      adam_(model_.parameters(), {.lr = kLearningRate}),
      scaler_(microbatches.device()),
      watch_(microbatches.device()) {}

at::Tensor Iteration::run(const std::vector<c10::IValue>& microbatches) {
  const at::Tensor loss = forward_backward(microbatches);
  update(loss);
  return loss;
}

at::Tensor Iteration::forward_backward(const std::vector<c10::IValue>& microbatches) {
  adam_.zero_grad();
  at::Tensor total = at::zeros({}, adam_.parameters(0).front().options().requires_grad(false));
  for (const c10::IValue& one : microbatches) {
    const at::Tensor& batch = one.toTensor();
    const at::Tensor loss = at::mse_loss(model_(batch), batch.flip(0)) / static_cast<double>(microbatches.size());
    scaler_.scale(loss).backward();
    total = total + loss.detach();
  }
  return total;
}

void Iteration::update(const at::Tensor& loss) {
  scaler_.unscale_(adam_);
  clip_grad_norm_(adam_, 1.0, {.error_if_nonfinite = checks_ == Checks::loss_and_gradients ? &watch_ : nullptr});
  scaler_.step(adam_);
  scaler_.update();
  if (checks_ == Checks::nowhere) return;
  watch_.check("loss", loss);
  watch_.end_step();
}

std::vector<at::Tensor> Iteration::state() const {
  std::vector<at::Tensor> state = adam_.parameters();
  for (const NamedTensor& one : adam_.state()) state.push_back(one.tensor);
  for (const NamedTensor& one : scaler_.state()) state.push_back(one.tensor);
  return state;
}

}  // namespace pianola::bench
