#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/owned_graph.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/pool_turn.hpp>

#include <cuda.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pianola::graph {

// Note [Executables that graphs share]
// Graphs of one pool never run at once, so those that are alike node by node need one executable: before a launch it is given the
// parameters of the graph that is launched, where another one was launched last. Launches that are under way keep theirs: "already
// enqueued or running launches are not affected", says cuda.h of each function that changes an executable's nodes, and
// cuGraphExecUpdate() changes the parameters of all of them. Whatever is done to one is done in a turn of the pool, in which the launch
// follows: see Note [Graphs of a pool run one after the other].
// CUDA pairs the nodes, by their edges and their order. Whether it looks at what kind an edge is it does not say: where a kernel may begin
// before the one it depends on ends, the graphs have to have such edges at the same places. An executable knows its nodes by those of the
// graph that it was made of, which lives as long as it does.

/// What graphs of one executable have in common, as far as CUDA does not look at it, or tells sooner.
struct GraphShape {
  static GraphShape read(CUgraph graph);
  bool operator==(const GraphShape&) const = default;

  std::size_t nodes = 0;
  /// Of edges behind which a kernel may begin early: what they lead from and to, by place, and their ports.
  std::vector<std::array<std::size_t, 4>> programmatic;
};

/// One executable, and the graphs that use it. A graph is whatever PoolGraphs knows it by.
class SharedExecutable {
 public:
  /// The graph that it is made of.
  struct Source {
    const void* graph;
    CUgraph nodes;
    std::vector<CUgraphNode> copies;  ///< Its InputCopies.
    ExecutableMemory memory;          ///< That the executable took.
  };
  using KeptGraph = std::shared_ptr<OwnedGraph::element_type>;
  SharedExecutable(Executable made, Source source, GraphShape shape);

  /// Whether it has the parameters of that graph, which may be launched.
  [[nodiscard]] bool is_of(const void* graph) const noexcept { return has_parameters_of_ == graph; }
  [[nodiscard]] const Executable& executable() const noexcept { return executable_; }
  /// Whether it can be tried to give it nodes of this shape, of which so many copy inputs.
  [[nodiscard]] bool may_take(const GraphShape& shape, std::size_t copies) const {
    return executable_.get() != nullptr && copies == source_.copies.size() && shape == shape_;
  }
  /// Gives it the parameters of another graph. Where it does not take them, it is nobody's.
  /// @return  Why it did not. @throws DeviceError
  [[nodiscard]] std::optional<UpdateRefusal> give(const void* graph, CUgraph nodes, const PoolTurn& turn);
  /// The nodes by which it knows the copies of inputs, of any graph that it takes.
  [[nodiscard]] std::span<const CUgraphNode> copies() const noexcept { return source_.copies; }

  void add(const void* graph, const PoolTurn& turn) {
    (void)turn;
    graphs_.push_back(graph);
  }
  void remove(const void* graph, const PoolTurn& turn) noexcept;
  [[nodiscard]] std::size_t graphs() const noexcept { return graphs_.size(); }
  /// The one of them that accounts count it for; nullptr: nobody uses it.
  [[nodiscard]] const void* bearer() const noexcept { return graphs_.empty() ? nullptr : graphs_.front(); }
  [[nodiscard]] ExecutableMemory memory() const noexcept { return source_.memory; }

  [[nodiscard]] bool is_made_of(CUgraph nodes) const noexcept { return source_.nodes == nodes; }
  /// The graph that it was made of ends, and others use it. @param source  Others may be made of it, too.
  void keep(KeptGraph source, const PoolTurn& turn) noexcept {
    (void)turn;
    kept_ = std::move(source);
  }

  /// While the pool sleeps: until make_again(), of a graph that uses it.
  void drop(const PoolTurn& turn) noexcept;
  void make_again(Executable made, Source source, const PoolTurn& turn);

 private:
  Executable executable_;
  const void* has_parameters_of_;  // nullptr: of nobody
  Source source_;
  GraphShape shape_;
  KeptGraph kept_;  // source_.nodes, where nobody else has them
  std::vector<const void*> graphs_;
};

/// The shared executables of one pool.
class SharedExecutables {
 public:
  /// Gives the graph one that takes it. @param copies  So many of its nodes copy inputs. @return  nullptr: there is none.
  [[nodiscard]] std::shared_ptr<SharedExecutable> give_one(const void* graph, CUgraph nodes, const GraphShape& shape,
                                                           std::size_t copies, const PoolTurn& turn);
  void add(const std::shared_ptr<SharedExecutable>& one, const PoolTurn& turn);

 private:
  std::vector<std::weak_ptr<SharedExecutable>> all_;
};

/// Whether all of its nodes are of kinds that executables take over: kernels, copies, fills.
[[nodiscard]] bool may_share_executables(CUgraph nodes);

}  // namespace pianola::graph
