#pragma once
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/owned_graph.hpp>
#include <pianola/cuda/rewired_graph.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/cuda/branches.hpp>
#include <pianola/graph/cuda/captured_graph.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/executable_share.hpp>
#include <pianola/graph/cuda/input_copies.hpp>
#include <pianola/graph/cuda/launcher.hpp>
#include <pianola/graph/cuda/numbered_replay.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Device.h>
#include <cuda.h>

#include <memory>

namespace pianola::graph {

/// What replays of one captured graph launch: an executable of its own, or one that it shares with others of its pool. It may have none,
/// until it is asked for one.
///
/// Threads:  One call at a time. The pool's sleep, on any thread, drops what is in the pool and makes it again.
class GraphExecutable final : private PoolGraphs::Executables {
 public:
  /// Where the graph has what an executable is made of, and set by; each is read when it is needed.
  struct Parts {
    c10::Device device;
    const std::shared_ptr<CudaPool>& pool;
    const std::unique_ptr<CapturedGraph>& graph;
    const std::unique_ptr<Branches>& branches;       // nullptr: none were asked for, or they are gone
    const std::unique_ptr<NumberedReplay>& numbers;  // nullptr: there are none
    InputCopies& copies;
  };
  explicit GraphExecutable(Parts parts) : rest_(std::make_unique<Rest>(parts, this)) {}

  /// The graph's own; made where there is none, and none is shared. @return  nullptr: it is shared, and what is to be set in it is noted.
  /// @throws UsageError  There is none, and the pool sleeps. And what instantiate() does.
  [[nodiscard]] CUgraphExec get() {
    if (own_.get() == nullptr && !rest_->share) [[unlikely]]
      make_missing();
    return own_.get();
  }
  /// To be launched where get() is not nullptr.
  [[nodiscard]] const Executable& own() const noexcept { return own_; }
  /// Launches the shared one. @throws  As ExecutableShare::launch().
  void launch_shared(Launcher& launcher);

  /// The one that there is; nullptr: there is none.
  [[nodiscard]] CUgraphExec raw() const noexcept { return rest_->share ? rest_->share.raw() : own_.get(); }
  /// The graph of the branches, where replays run it; nullptr: they run the one that was captured.
  [[nodiscard]] const RewiredGraph* rewired() const noexcept {
    return rest_->of.branches ? rest_->of.branches->graph() : nullptr;
  }
  /// That which replays run.
  [[nodiscard]] CUgraph made_of() const noexcept {
    return rewired() != nullptr ? rewired()->get() : rest_->of.graph->nodes();
  }
  /// While it lives, the graph's nodes may be read.
  [[nodiscard]] ExecutableShare::NodesAlone nodes_alone() const {
    return ExecutableShare::NodesAlone(rest_->share, *rest_->of.pool);
  }
  /// What accounts count for this graph; see ExecutableShare.
  [[nodiscard]] ExecutableShare::Counted counted() const;

  /// A capture begins, which may share.
  void begin() noexcept { rest_->may_share = true; }
  /// But not this one.
  void keep_apart() noexcept { rest_->may_share = false; }
  /// The capture has ended: the pool's sleep knows it from now on.
  void enter_pool() { rest_->of.pool->graphs().add(this, *this); }
  /// The pool's sleep knows it no more, and others may go on with what it shares.
  void leave_pool() noexcept;

  /// Makes it anew, or for the first time: one of its own, or a share of one that the pool has.
  /// @throws OutOfMemoryError, DeviceError  It has none.
  void instantiate();
  /// The same, never a share.
  void instantiate_own();
  /// Its own was made while lanes were to be tried: it gives that up for one of the pool's, or lets others share it.
  void share();
  /// The lanes were taken: their executable, and the copies of inputs in it, take the place of those there are.
  void take_lanes();
  /// That of an earlier capture takes this one over; see Backend::take_over().
  void take_over(GraphExecutable& earlier, const OpTrace& captured, const OpTrace& now);
  /// See Backend::keep_of().
  void keep_of(GraphExecutable& earlier) noexcept;
  /// Pieces of the graph have executables of their own, which took this.
  void add_memory(ExecutableMemory more);

  /// Its own goes, after leave_pool(): nothing is left to count, or to make again when the pool wakes.
  void drop() noexcept {
    own_ = {};
    rest_->memory = {};
    rest_->is_dropped = false;
  }
  /// And the earlier graph by whose nodes it knew the copies of inputs.
  void drop_earlier_graph() noexcept { rest_->earlier_graph.reset(); }

 private:
  struct Rest {
    Rest(Parts parts, const void* graph) : of(parts), share(graph) {}

    Parts of;
    ExecutableShare share;     // where it has one, there is none of its own
    OwnedGraph earlier_graph;  // by whose nodes its own knows the copies of inputs, where they are not the graph's
    ExecutableMemory memory;   // that its own took
    bool is_dropped = false;   // while the pool sleeps without
    bool may_share = true;     // as far as the recording goes
  };

  void drop_executables() noexcept override;
  ExecutableMemory make_executables() override;
  void make_missing();
  [[nodiscard]] Executable make(ExecutableMemory& taken) const;
  void make_own();
  void let_go();
  void count();
  [[nodiscard]] bool may_share() const;
  [[nodiscard]] bool join();
  void offer();
  void take_over_shared(GraphExecutable& earlier, const OpTrace& captured, const OpTrace& now);

  // A replay reads the first alone, and what CudaBackend has behind it: the rest lies elsewhere.
  Executable own_;
  std::unique_ptr<Rest> rest_;
};

}  // namespace pianola::graph
