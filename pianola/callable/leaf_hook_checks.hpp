#pragma once
#include <torch/csrc/autograd/variable.h>

namespace pianola::callable {

// Asked of each parameter at each call, so that they are inline; those who ask less often know leaf_hooks.hpp and leaf_scope.hpp.

/// Whether autograd keeps something for hooks of this leaf. Where it does not there are none.
inline bool may_have_hooks(const torch::autograd::AutogradMeta& meta) noexcept {
  return !meta.hooks_.empty() || meta.post_acc_grad_hooks_ != nullptr;
}

/// Of a leaf whose AccumulateGrad node somebody holds.
bool live_accumulator_has_hooks(const torch::autograd::AutogradMeta& meta) noexcept;

/// Whether its AccumulateGrad node has hooks: DistributedDataParallel's, say, which no tensor shows. Nobody holds the node
/// while no eager graph of the parameter lives, unless it is for its hooks.
inline bool accumulator_has_hooks(const torch::autograd::AutogradMeta& meta) noexcept {
  return !meta.grad_accumulator_.expired() && live_accumulator_has_hooks(meta);
}

/// Where it is false there is none of either kind; hooks that were removed may leave it true.
inline bool may_be_hooked(const torch::autograd::AutogradMeta& meta) noexcept {
  return may_have_hooks(meta) || accumulator_has_hooks(meta);
}

}  // namespace pianola::callable
