#pragma once
#include <pianola/graph/graph.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <span>

namespace pianola::graph {

/// Numbers of the host that a captured graph gives to its operations, which are counted from 1 as the step called them.
class GraphNumbers {
 public:
  explicit GraphNumbers(Graph& graph) : impl_(*graph.impl_) {}

  /// Before a capture: which of its operations set() will be called for. Asked while each is recorded.
  void keep(std::function<bool(std::size_t operation)> wanted) const;
  /// Whether this argument of the operation can be set.
  [[nodiscard]] bool has(std::size_t operation, std::size_t argument) const;
  /// From the next replay on. @param value  A number, or a list of them, of the type that it had.
  void set(std::size_t operation, std::size_t argument, const c10::IValue& value) const;
  /// The last operation up to this one that replay() calls, so that it may throw; 0 if there is none.
  [[nodiscard]] std::size_t last_called(std::size_t operation) const noexcept;
  /// Whether replays may run kernels that no operator launched, so that nobody knows what is read and written.
  [[nodiscard]] bool runs_unknown_kernels() const;
  /// Throws what a replay that is made now would throw before it launches anything. @throws UsageError, ReplayError
  void check_replayable() const;
  /// Copies `sources` into the inputs, for replay(first, last).
  void copy_inputs(std::span<const at::Tensor> sources) const;
  /// Whether replays from now on are of the call that was recorded: messages that other ranks sent to it they do not send again.
  void repeat_recorded_call(bool repeat) const;
  /// Runs the operations from `first` to `last` alone. What one of them throws comes out, as of a replay.
  void replay(std::size_t first, std::size_t last) const;

 private:
  Graph::Impl& impl_;
};

}  // namespace pianola::graph
