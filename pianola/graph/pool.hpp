#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace pianola {

class PoolState;  // private: memory pool, capture stream, workspaces and ledger of one family of graphs
class GraphPoolRef;

/// torch's name for a memory pool: what torch.cuda.graph_pool_handle(), CUDAGraph::pool() and MemPool::id() return.
using PoolId = std::pair<unsigned long long, unsigned long long>;

struct SuspendOptions {
  /// Whether the executables of the pool's graphs stay, which take memory of the driver's for each node: GraphMemory and process_memory()
  /// say how much. Off: they go, too, and resume() makes them again from the captured graphs, which costs as much time as
  /// Graph::instantiate(). Nothing on the tape.
  bool keep_executables = true;
};

/// Memory that several graphs share: one graph's scratch may reuse the bytes of another's.
///
/// Graphs of one pool may be replayed in any order that is harmless. A replay is refused (ReplayError) when it would
/// read a result of another graph that a later replay has overwritten; see Note [Pool ledger] in graph/ledger.hpp.
/// The memory lives until the pool and every graph captured in it are gone, in whichever order.
///
/// On CUDA they run one after the other, in the order of their launches, also where these are on different streams. A replay
/// may overwrite what the graph captured before it returned: read a result before the next replay, or, where another thread
/// may replay at any time, let the graph itself write it into a tensor of your own (`out.copy_(result)`).
///
/// Threads:  Create, share and destroy from any thread. Several may replay graphs of one pool at once. One at a time captures
///           into it; another capture, and a replay while the first one warms up, is refused by a UsageError.
class PIANOLA_API GraphPool {
 public:
  struct Options {
    /// Whether suspend() may be called: on CUDA the pool's memory then lies at addresses of Pianola's. Other GPUs and processes cannot
    /// read it there.
    bool can_sleep = false;
    /// Whether all captures into it plan their memory (CaptureOptions::plan_memory), in one region: the largest graph decides what the
    /// pool takes, in whatever order they are captured. Results that are still held stay where they are, and later graphs lie around
    /// them. On CUDA other GPUs and processes cannot read the pool's memory. With expandable segments each graph has a region of its own.
    bool plan_memory = false;
    /// Whether graphs of the pool that are alike (the layers of a model, or a step's buckets, where these make the same kernels) have one
    /// executable together. A replay that follows one of another graph first gives it its parameters, which costs the host time
    /// for each node; one that follows its own costs what it costs else. Graphs that communicate, have lanes,
    /// numbers or parts that stay eager, and those with nodes other than kernels, copies and fills, have executables of their own:
    /// GraphInfo::shares_executable tells. Nothing on the tape, which has no executables.
    bool share_executables = false;
  };
  /// @throws DeviceError  `device` is CUDA and there is none, or Pianola was built without CUDA.
  /// @throws UnsupportedError  `can_sleep`, with another allocator of CUDA memory than torch's native one, or with expandable segments.
  explicit GraphPool(c10::Device device);
  GraphPool(c10::Device device, const Options& options);
  /// The pool of that name, which may be one of torch's own; all handles of one name and device share one pool.
  GraphPool(c10::Device device, PoolId id);
  GraphPool(GraphPool&&) noexcept;
  GraphPool& operator=(GraphPool&&) noexcept;
  ~GraphPool();

  [[nodiscard]] c10::Device device() const noexcept;
  /// Bytes that the pool holds on its device, or will hold again where it sleeps; on the tape, bytes of the tensors that its graphs made.
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] PoolId id() const noexcept;

  /// Gives the pool's memory back to the driver until resume(); the addresses stay, and so do the graphs. What tensors hold of it, results
  /// above all, is kept in pinned memory of the host; scratch is dropped. Nobody may read these tensors meanwhile: on CUDA their memory is
  /// not there. A replay, and a capture into the pool, is refused. Tensors from outside of the pool stay where they are: a graph whose
  /// tensor was given other memory meanwhile names it and refuses to replay. On the tape, scratch of whole pages goes.
  ///
  /// @return  Bytes of the pool that went back, without those of executables; 0 where it sleeps already.
  /// @throws UsageError  The pool cannot sleep; a capture is open, on CUDA on any thread; Allocations live; a part that stays eager calls it, in a replay of a graph of the pool; or
  ///                     a graph sends or receives memory of the pool: NCCL has registered it at the capture.
  /// @throws OutOfMemoryError  The host has no pinned memory for what is held: it stays awake, and nothing is lost.
  /// Ranks:    Where a graph of the pool communicates, all ranks of its process groups call it at the same point, as a collective, and
  ///           so resume(): where one is refused, or does not come within the groups' timeout, all are, by a UsageError that names the
  ///           rank and its reason, and nothing sleeps. For OutOfMemoryError of one all throw that.
  /// Streams:  Waits for the device.
  /// Threads:  Any; no replay of a graph of the pool may run, and nobody may capture on the device by other means.
  std::size_t suspend(const SuspendOptions& options = {});
  /// Brings it back, with what was kept, and makes executables that are missing. Nothing where it is awake.
  /// @throws OutOfMemoryError  There is no room, of memory or executables: it goes on sleeping, and nothing is lost. DeviceError: CUDA
  ///                           failed; so it does then. UsageError: a capture is open on this thread.
  void resume();
  [[nodiscard]] bool is_asleep() const noexcept;

  /// While it lives, what this thread allocates on the device lies in the pool and sleeps with it: parameters, states of an optimizer.
  ///
  ///     const GraphPool::Allocations in_pool(pool);
  ///     model->to(device);
  ///
  /// Not in memory that a replay of one of its graphs writes. What autograd's threads allocate lies outside. Nothing on the tape.
  /// @throws UsageError  By the constructor: the pool sleeps, somebody captures into it, or a capture is open on this thread. By a capture
  ///                     of this thread: one lives. Destroy it on the thread that made it.
  class PIANOLA_API Allocations {
   public:
    explicit Allocations(GraphPool& pool);
    Allocations(const Allocations&) = delete;
    Allocations& operator=(const Allocations&) = delete;
    ~Allocations();

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// A name that no pool has yet.
  [[nodiscard]] static PoolId new_id();

 private:
  friend class GraphPoolRef;
  std::shared_ptr<PoolState> state_;
};

/// Suspends every pool of this process that can sleep; those whose graphs communicate with other ranks all together, or none of them.
/// @return  Bytes that went back, as of GraphPool::suspend().
/// @throws UsageError  As GraphPool::suspend(), for the first pool that cannot; the others sleep.
PIANOLA_API std::size_t suspend_all(const SuspendOptions& options = {});
/// Resumes every pool that sleeps, in the same way. @throws OutOfMemoryError  As GraphPool::resume(), for the first pool without room.
PIANOLA_API void resume_all();

/// Names a pool to capture into; empty means "a pool of its own". Cheap to copy; keeps the pool's memory alive.
class PIANOLA_API GraphPoolRef {
 public:
  GraphPoolRef() noexcept;
  GraphPoolRef(const GraphPool& pool) noexcept;  // NOLINT(google-explicit-constructor): reads as {.pool = pool}
  GraphPoolRef(const GraphPoolRef&) noexcept;
  GraphPoolRef(GraphPoolRef&&) noexcept;
  GraphPoolRef& operator=(const GraphPoolRef&) noexcept;
  GraphPoolRef& operator=(GraphPoolRef&&) noexcept;
  ~GraphPoolRef();

  [[nodiscard]] bool empty() const noexcept;
  /// @throws UsageError  It is empty.
  [[nodiscard]] PoolId id() const;

  /// For the rooms of the library.
  explicit GraphPoolRef(std::shared_ptr<PoolState> state) noexcept;
  [[nodiscard]] const std::shared_ptr<PoolState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<PoolState> state_;
};

/// Pools whose graphs run one after the other, of whichever of them they are, as graphs of one pool do. So they share the workspaces
/// of matrix products, which are most of the memory of a small graph: on a Hopper GPU 32 MiB for the thread, and as many for
/// autograd's. All else is each pool's own: none overwrites a result of another.
///
/// Threads:  Any.
class PIANOLA_API GraphPoolFamily {
 public:
  GraphPoolFamily();
  GraphPoolFamily(const GraphPoolFamily&) = delete;
  GraphPoolFamily& operator=(const GraphPoolFamily&) = delete;
  ~GraphPoolFamily();

  /// Another pool. @throws DeviceError, UnsupportedError  As GraphPool's constructor.
  [[nodiscard]] GraphPoolRef make_pool(c10::Device device) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace pianola
