#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/one_call.hpp>
#include <pianola/graph/account/pool_memory.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/memory/apart_plan.hpp>

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace pianola {

// Note [Threads that share a pool]
// Captures into a pool share the free memory and cuBLAS's workspaces of its earlier graphs, which replays write: one capture
// at a time, and no replay while its warm-up runs, which computes there. Recording computes nothing there: replays go on.
// Neither waits for the other, since a step may wait for the thread that replays; both are refused.
// So are replays while another thread is between two pieces of one, as a step is whose optimizer reads values of the device on the host:
// what lies between them is the graph's still. Only graphs that plan put scratch there: other pools refuse nothing.

/// What pools of a family share, by kind of device; see GraphPoolFamily.
class PoolFamily {
 public:
  PoolFamily() = default;
  PoolFamily(const PoolFamily&) = delete;
  PoolFamily& operator=(const PoolFamily&) = delete;
  virtual ~PoolFamily() = default;
};
/// nullptr: pools of this device share nothing. @throws DeviceError, UnsupportedError  As Graph's constructor.
std::shared_ptr<PoolFamily> make_pool_family(c10::Device device);

/// How a pool is made; see GraphPool::Options.
struct PoolTraits {
  bool can_sleep = false;
  bool shares_region = false;  ///< What captures into it plan lies in one region, where the device has such.
  bool plans_all = false;      ///< And every capture into it plans its memory.
  bool shares_executables = false;
};

/// A recording holds memory that the run before it had let go of, and earlier graphs of the pool write there. It can be captured where
/// PoolState::reserve_used_memory() is in force in place of reserve_for_results().
class HeldScratch : public CaptureError {
 public:
  using CaptureError::CaptureError;
};

/// What the captures of a pool plan in.
struct SharedRegions {
  std::uint64_t bytes = 0;
  std::uint64_t kept_bytes = 0;  ///< Of the region of what is never freed.
  bool keeps_apart = false;      ///< Such blocks lie there, not with all else.
  memory::TakenApart taken;      ///< What plans keep clear of.
};

/// What the graphs of one pool share. Lives until the last of them, and the last handle, is gone.
class PoolState {
 public:
  /// Eager runs of a step that will be captured into the pool, while it lives.
  class WarmUp {
   public:
    /// On the capture's stream.
    explicit WarmUp(PoolState& pool);
    WarmUp(const WarmUp&) = delete;
    WarmUp& operator=(const WarmUp&) = delete;
    ~WarmUp();

   private:
    PoolState& pool_;
  };

  /// A replay in pieces, while it lives. Nothing where the pool's graphs do not plan in one region, and within another one of this thread.
  class InPieces {
   public:
    /// @throws UsageError  Another thread has one.
    explicit InPieces(PoolState& pool);
    InPieces(const InPieces&) = delete;
    InPieces& operator=(const InPieces&) = delete;
    ~InPieces();

   private:
    PoolState* pool_ = nullptr;
  };

  /// A replay, while it lives: what lies between its parts is the graph's, and the pool cannot be suspended. For those on the tape, and
  /// those between whose parts code of the user's runs.
  class InUse {
   public:
    /// @throws UsageError  As check_ready(), but for pieces.
    explicit InUse(PoolState& pool);
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;
    ~InUse() { --pool_.replays_; }

   private:
    PoolState& pool_;
  };

  PoolState(c10::Device device, PoolId id, PoolTraits traits) noexcept : device_(device), id_(id), traits_(traits) {}
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;
  virtual ~PoolState() = default;

  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// For the library's own use. What leaves it is told: a name that somebody may keep names this pool for ever.
  [[nodiscard]] PoolId id() const noexcept { return id_; }
  [[nodiscard]] PoolId tell_id() noexcept {
    id_was_told_ = true;
    return id_;
  }
  [[nodiscard]] bool can_sleep() const noexcept { return traits_.can_sleep; }
  [[nodiscard]] bool plans_all() const noexcept { return traits_.plans_all; }
  [[nodiscard]] bool shares_executables() const noexcept { return traits_.shares_executables; }
  [[nodiscard]] bool id_was_told() const noexcept { return id_was_told_; }
  [[nodiscard]] virtual std::size_t bytes() const = 0;
  /// What it has. While something is captured into it, without the workspaces.
  [[nodiscard]] PoolMemory memory() const;
  /// That torch's allocator asked the driver for, in the order of addresses. None on the tape.
  [[nodiscard]] virtual std::vector<ByteSpan> segments() const { return {}; }
  /// Of cuBLAS, for its graphs; merged(). Pools of a family share some. None on the tape.
  [[nodiscard]] virtual std::vector<ByteSpan> workspace_spans() const { return {}; }
  [[nodiscard]] PoolGraphs& graphs() noexcept { return graphs_; }

  /// While the result lives, later captures in the pool do not use memory that earlier ones used and freed: their
  /// results survive replays of the earlier graphs, in any order. nullptr where memory is never reused.
  [[nodiscard]] virtual std::shared_ptr<void> reserve_used_memory() { return nullptr; }
  /// The same, but what these captures plan and free again may lie in what earlier ones have planned and freed: no two graphs run at
  /// once. Not for graphs between whose parts code of the user's runs, which may replay others.
  /// A capture throws HeldScratch where it holds at its end what it should have freed by its plan, and others write there.
  [[nodiscard]] virtual std::shared_ptr<void> reserve_for_results() { return reserve_used_memory(); }

  /// nullopt: each capture plans in a region of its own, if it does.
  [[nodiscard]] virtual std::optional<SharedRegions> shared_regions() const { return std::nullopt; }

  /// While the result lives, what this thread allocates on the device goes to the pool. nullptr where there is nothing to do.
  [[nodiscard]] virtual std::shared_ptr<void> allocate_into() { return nullptr; }

  /// Captures into the pool.
  [[nodiscard]] OneCall& captures() noexcept { return captures_; }
  /// Before a replay. @throws UsageError  Another thread warms up a capture into the pool or is in pieces of a replay, or it sleeps.
  void check_ready() const {
    if (is_.load(std::memory_order_relaxed) != Is::ready) [[unlikely]]
      refuse_replay();
    if (in_pieces_.load(std::memory_order_relaxed) != std::thread::id()) [[unlikely]]
      check_pieces();
  }
  /// Before a capture, say. @param call  "capture()", for the error. @throws UsageError  It sleeps.
  void check_awake(const char* call) const;
  /// Before a call of captures(), whose own refusal would not name them. @throws UsageError  GraphPool::Allocations live.
  void check_not_allocated_into(const char* call) const;
  /// Whether they live. Call it in their call of captures().
  void note_allocations(bool live) noexcept { is_allocated_into_ = live; }

  /// See GraphPool, and pool_sleep.hpp.
  std::size_t suspend(const SuspendOptions& options);
  void resume();
  class Suspending;
  class Resuming;
  [[nodiscard]] bool is_asleep() const noexcept { return is_.load(std::memory_order_relaxed) == Is::asleep; }

 private:
  enum class Is : std::uint8_t { ready, warmed_up, asleep };

  virtual void begin_warm_up() {}
  virtual void end_warm_up() {}
  // Without replays or captures, and none begins meanwhile: copies what has to be kept.
  virtual void prepare_sleep() {}
  // After that, also once more after take_memory_back(). @return  Bytes that went back.
  virtual std::size_t let_memory_go() { return 0; }
  virtual void take_memory_back() {}
  // What torch's allocator holds unused goes back to the driver, or it throws OutOfMemoryError.
  virtual void empty_cache() {}
  // It is awake again, or has not slept: what was kept for it may go.
  virtual void end_sleep() noexcept {}
  // Fills in what `bytes` is made of.
  virtual void account(PoolMemory& memory) const = 0;
  [[nodiscard]] virtual bool holds(std::uintptr_t /*address*/) const { return false; }
  [[noreturn]] void refuse_replay() const;
  void check_pieces() const;
  void check_unused() const;  // before it sleeps

  c10::Device device_;
  PoolId id_;
  PoolTraits traits_;
  std::atomic<bool> id_was_told_{false};
  std::atomic<Is> is_{Is::ready};
  std::atomic<std::thread::id> in_pieces_{std::thread::id()};  // whose replay is
  std::atomic<int> replays_{0};  // InUse; counted before is_ is read, as suspend() sets it before
  OneCall captures_;
  std::atomic<bool> is_allocated_into_{false};
  PoolGraphs graphs_;
  bool drops_executables_ = false;  // while it sleeps
};

namespace graph {
class Tape;
}

/// The tape's pool. Its results are never reused, so all it has to share is the count of their bytes, and to sleep.
class TapePool final : public PoolState {
 public:
  TapePool(PoolId id, PoolTraits traits) noexcept : PoolState(c10::Device(c10::kCPU), id, traits) {}
  [[nodiscard]] std::size_t bytes() const override;
  void add(const graph::Tape& tape, std::size_t bytes);
  /// Nothing where it was not added.
  void remove(const graph::Tape& tape) noexcept;

 private:
  std::size_t let_memory_go() override;
  void account(PoolMemory& memory) const override;
  [[nodiscard]] std::vector<const graph::Tape*> tapes() const;  // under the lock

  mutable std::mutex mutex_;
  std::map<const graph::Tape*, std::size_t> tapes_;  // the bytes of each
};

/// Of this process, on all devices.
[[nodiscard]] std::vector<std::shared_ptr<PoolState>> living_pools();
/// The pool of that name on the device; made where there is none.
/// @throws DeviceError, UnsupportedError  As Graph's constructor.
std::shared_ptr<PoolState> pool_state(c10::Device device, PoolId id);
/// A pool of its own. @param family  Of make_pool_family() for this device.
std::shared_ptr<PoolState> make_pool_state(c10::Device device, const std::shared_ptr<PoolFamily>& family = nullptr,
                                           PoolTraits traits = {});

}  // namespace pianola
