#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace pianola::graph {

// Note [Copies inside the graph]
// Launching a copy costs the host as much as launching a whole graph. So the copies into static inputs are the first
// nodes of the graph itself. Where a source is, is a parameter of its node, set in the executable when it changes: with
// sources in static memory, as the outputs of another graph are, that is once. A copy that is not needed is disabled.
// Where graphs share an executable, another may be launched between: what is to be set is noted, with nullptr for the executable, and
// settled when the graph has it.

/// The copy nodes of one graph.
class InputCopies {
 public:
  using NewNodes = std::function<std::span<const CUgraphNode>()>;
  /// As the first work of a capture on `stream`. `new_nodes` tells which nodes the capture got since it was asked last.
  void record(std::vector<at::Tensor> inputs, CUstream stream, const NewNodes& new_nodes);
  /// The executable is new: until sources are known, nothing is copied.
  void start(CUgraphExec executable);
  /// The same of an executable that was made from an earlier graph and has taken over this one: it knows its nodes by those of that
  /// graph, which has to stay. @param earlier  The copies of that graph, or that took over themselves; as many as here.
  void start_in_place_of(const InputCopies& earlier, CUgraphExec executable);
  /// The same of an executable that other graphs use, too, and that knows them by these nodes, as many as nodes() here.
  void start_shared(std::span<const CUgraphNode> in_executable);
  /// The executable knows them by these nodes.
  void know_by(std::span<const CUgraphNode> in_executable);
  void know_by_own() { know_by(nodes()); }
  /// Sets all that was noted in the executable, which has the parameters of this graph, before a launch on `stream`. What it does not
  /// take is copied there.
  void settle(CUgraphExec executable, CUstream stream);
  [[nodiscard]] bool is_settled() const noexcept { return is_settled_; }
  /// Whether the executable knows them by the nodes of an earlier graph.
  [[nodiscard]] bool use_earlier_nodes() const noexcept;
  void disable_all(CUgraphExec executable);
  /// Before a launch. What no copy node can do (another layout or dtype, zeros) is done here, on the current stream.
  /// @param before_copying  Called then: orders the stream behind the last replay.
  void set_sources(CUgraphExec executable, std::span<const at::Tensor> sources,
                   c10::function_ref<void()> before_copying);
  /// Copies at once, on the current stream, and nothing with the launch.
  void copy_now(CUgraphExec executable, std::span<const at::Tensor> sources);

  /// Nodes that it added to the graph, in order.
  [[nodiscard]] std::vector<CUgraphNode> nodes() const;
  /// The same copies in a clone of the graph; `in_clone` tells the clone's node.
  [[nodiscard]] InputCopies in(const std::function<CUgraphNode(CUgraphNode)>& in_clone) const;

 private:
  struct Copy {
    CUgraphNode node = nullptr;           // nullptr: nothing to copy
    CUgraphNode in_executable = nullptr;  // by which the executable knows it
    const void* source = nullptr;
    bool enabled = true;
  };
  void start_over(CUgraphExec executable);
  void settle(CUgraphExec executable, std::size_t i, CUstream stream);
  void enable(CUgraphExec executable, Copy& copy, bool enabled);
  bool set_source(CUgraphExec executable, std::size_t i, const void* source);
  std::vector<at::Tensor> targets_;
  std::vector<Copy> copies_;  // one per target
  bool is_settled_ = true;
};

}  // namespace pianola::graph
