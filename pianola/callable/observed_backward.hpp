#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace pianola::callable {

// Note [Gradients that are added up]
// Autograd adds up all gradients that a parameter gets in one backward pass, and then adds the sum to `p.grad`. A backward
// graph that adds to `p.grad` by itself knows those of its own call only: where other calls, or code around them, use the
// parameter in the same pass, additions come in another order, and round otherwise. So warm-up calls are looked at: which of
// their parameters get gradients from elsewhere in the backward passes that they are part of? Functions with such parameters
// leave their gradients to autograd (GradPolicy::clone). The same holds for an input that the function uses several times, and
// others use as well, as connections that skip layers do: then the gradient of each use goes to autograd
// (CallableOptions::gradient_per_use). Until the backward passes of the warm-up calls have begun, or cannot come any more,
// nothing is captured; for a while.

/// What the backward pass of a run that comes from outside shows of the run, when it comes.
class ObservedBackward {
 public:
  ObservedBackward() = default;
  /// @param began  The number that autograd gave the first node of the run; see at::sequence_number.
  ObservedBackward(std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results, std::uint64_t began);

  /// Whether the backward pass may still come.
  [[nodiscard]] bool is_awaited() const;
  /// Whether it has come.
  [[nodiscard]] bool was_seen() const;
  /// Whether one of these parameters gets gradients from elsewhere, too.
  [[nodiscard]] bool reach(const std::vector<at::Tensor>& leaves) const;
  /// The same of an input that the run itself uses several times.
  [[nodiscard]] bool reach_inputs() const;
  /// Of the gradient of each result; empty where there was none, or it was no dense one.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> gradient_strides() const;

 private:
  struct Watched;
  std::shared_ptr<Watched> watched_;  // nullptr: there is nothing to see
};

}  // namespace pianola::callable
