#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::callable {

// Note [Gradients that are added up]
// Autograd adds up all gradients that a parameter gets in one backward pass, and then adds the sum to `p.grad`. A backward graph
// that adds to `p.grad` by itself knows those of its own call only: where other calls, or code around them, use the parameter in
// the same pass, additions come in another order, and round otherwise. So warm-up calls are looked at: which of their parameters
// get gradients from elsewhere in the backward passes that they are part of? Functions with such parameters leave their gradients
// to autograd (GradPolicy::clone). Until the backward passes of the warm-up calls have begun, or cannot come any more, nothing is
// captured; for a while.

/// The parameters that get gradients from elsewhere in the backward pass of a run, when that comes.
class OuterGradients {
 public:
  OuterGradients() = default;
  /// @param began  The number that autograd gave the first node of the run; see at::sequence_number.
  OuterGradients(const std::vector<at::Tensor>& results, std::uint64_t began);

  /// Whether the backward pass may still come.
  [[nodiscard]] bool is_awaited() const;
  /// Whether one of these tensors was such a parameter.
  [[nodiscard]] bool reach(const std::vector<at::Tensor>& leaves) const;

 private:
  struct Watched;
  std::shared_ptr<Watched> watched_;  // nullptr: there is nothing to see
};

}  // namespace pianola::callable
