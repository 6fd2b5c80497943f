#pragma once
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::callable {

// Note [What a history holds]
// The history of a result holds what its backward pass needs, as long as somebody holds the result: references to what the run made or was
// given, which are not the function's. A step runs that backward pass itself, which lets go of all that was saved, so that `return loss`
// tells as much as `return loss.detach()`. What is left are leaves: a history leads to each, as to one that an attack makes of its input.
// While a node holds what nobody can tell (it did not run, or is a custom function, or has hooks, as a leaf that it alone holds may have),
// nothing can be said.

/// The history of what a run returned. Keeps nothing alive. One thread.
class ResultHistory {
 public:
  ResultHistory() = default;
  /// Right after the run, on its thread.
  /// @param began     The number that autograd gave its first node, or would have; see at::sequence_number.
  /// @param released  The nodes that backward passes in it ran and let go of.
  ResultHistory(const std::vector<at::Tensor>& results, std::uint64_t began,
                std::span<const trace::ReleasedNode> released);

  /// Whether it lives, and may hold tensors of the run besides leaves.
  [[nodiscard]] bool may_hold_tensors() const;
  /// References to this memory by leaves that it alone holds.
  [[nodiscard]] std::size_t references_to(const c10::Storage& memory) const;

 private:
  std::vector<torch_abi::WeakNodeRef>
      open_;  // of results that lead to what cannot be told; nodes behind them live as long
  std::vector<trace::WeakTensor> leaves_;
};

}  // namespace pianola::callable
