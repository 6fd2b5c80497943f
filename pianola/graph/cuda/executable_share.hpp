#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/cuda/captured_graph.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/input_copies.hpp>
#include <pianola/graph/cuda/launcher.hpp>
#include <pianola/graph/cuda/shared_executable.hpp>
#include <pianola/graph/pool_turn.hpp>

#include <c10/util/FunctionRef.h>

#include <cuda.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace pianola::graph {

/// What one graph has of an executable that graphs of its pool share; see Note [Executables that graphs share]. It may have none.
class ExecutableShare {
 public:
  /// @param graph  By which PoolGraphs knows it.
  explicit ExecutableShare(const void* graph) noexcept : graph_(graph) {}

  [[nodiscard]] explicit operator bool() const noexcept { return shared_ != nullptr; }
  [[nodiscard]] CUgraphExec raw() const noexcept { return shared_->executable().get(); }

  /// Takes a share of one of the pool's, where one takes these nodes, and counts what it has of it. @return  Whether one did.
  [[nodiscard]] bool join(CudaPool& pool, CUgraph nodes, InputCopies& copies);
  /// The same of that which another graph of the pool has. @return  Why it does not take them. @throws DeviceError
  [[nodiscard]] std::optional<UpdateRefusal> join(CudaPool& pool, const ExecutableShare& other, CUgraph nodes,
                                                  InputCopies& copies);
  /// Lets graphs that the pool gets later share what was made of these nodes.
  void offer(CudaPool& pool, Executable made, ExecutableMemory memory, CUgraph nodes, InputCopies& copies);

  /// One that is this graph's alone, where the shared one failed.
  using MakeOwn = c10::function_ref<const Executable&()>;
  /// Launches it with the graph's parameters. @throws  As Launcher::launch(), and what make_own() does.
  void launch(Launcher& launcher, CudaPool& pool, InputCopies& copies, MakeOwn make_own);

  /// Others may go on with it.
  void leave(CudaPool& pool) noexcept;
  /// After leave(), before the graph ends: gives it away where others use executables that were made of it.
  void hand_over(CudaPool& pool, CapturedGraph& graph) noexcept;
  /// Whether one that was made of the graph, and is used still, knows its nodes by the graph's.
  [[nodiscard]] bool lends_nodes() const noexcept {
    return std::ranges::any_of(made_, [](const auto& one) { return !one.expired(); });
  }

  /// While it lives, nobody sets executables by the graph's nodes in a turn: CUDA wants all calls with one graph, also those that only
  /// read it, one after the other. Make none in a turn.
  class NodesAlone {
   public:
    NodesAlone(const ExecutableShare& share, CudaPool& pool) {
      if (share.lends_nodes()) turn_.emplace(pool.turns());
    }

   private:
    std::optional<PoolTurn> turn_;
  };

  /// While the pool sleeps: no graph is launched, but others of the pool may end.
  void drop_executable(CudaPool& pool) noexcept;
  [[nodiscard]] bool lacks_executable() const noexcept { return shared_ != nullptr && raw() == nullptr; }
  void make_again(CudaPool& pool, Executable made, ExecutableMemory memory, CUgraph nodes, InputCopies& copies);
  /// What accounts count for this graph: all of its executable, or nothing, where they count that for another.
  struct Counted {
    ExecutableMemory memory;
    bool is_shared;  ///< Other graphs use it.
  };
  [[nodiscard]] Counted counted(CudaPool& pool) const;

 private:
  class Heir;
  [[nodiscard]] GraphShape shape_of(CudaPool& pool, CUgraph nodes) const;
  void adopt(std::shared_ptr<SharedExecutable> shared, CUgraph nodes, InputCopies& copies);
  void count(CudaPool& pool) const;
  void note_made();
  const Executable& take(const PoolTurn& turn, CUstream stream, Heir& heir, InputCopies& copies, MakeOwn make_own);
  [[nodiscard]] bool try_give(const PoolTurn& turn);
  void leave(Heir& heir, const PoolTurn& turn) noexcept;

  const void* graph_;
  CUgraph nodes_ = nullptr;
  std::shared_ptr<SharedExecutable> shared_;
  std::vector<std::weak_ptr<SharedExecutable>> made_;  // of this graph, by whose nodes they know their own
};

}  // namespace pianola::graph
