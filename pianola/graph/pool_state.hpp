#pragma once
#include <pianola/core/one_call.hpp>
#include <pianola/graph/pool.hpp>

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <memory>

namespace pianola {

// Note [Threads that share a pool]
// Captures into a pool share the free memory and cuBLAS's workspaces of its earlier graphs, which replays write: one capture
// at a time, and no replay while its warm-up runs, which computes there. Recording computes nothing there: replays go on.
// Neither waits for the other, since a step may wait for the thread that replays; both are refused.

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

  PoolState(c10::Device device, PoolId id) noexcept : device_(device), id_(id) {}
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
  [[nodiscard]] bool id_was_told() const noexcept { return id_was_told_; }
  [[nodiscard]] virtual std::size_t bytes() const = 0;

  /// While the result lives, later captures in the pool do not use memory that earlier ones used and freed: their
  /// results survive replays of the earlier graphs, in any order. nullptr where memory is never reused.
  [[nodiscard]] virtual std::shared_ptr<void> reserve_used_memory() { return nullptr; }

  /// Captures into the pool.
  [[nodiscard]] OneCall& captures() noexcept { return captures_; }
  /// Before a replay. @throws UsageError  Another thread warms up a capture into the pool.
  void check_no_warm_up() const {
    if (warms_up_.load(std::memory_order_relaxed)) [[unlikely]]
      refuse_replay();
  }

 private:
  virtual void begin_warm_up() {}
  virtual void end_warm_up() {}
  [[noreturn]] static void refuse_replay();

  c10::Device device_;
  PoolId id_;
  std::atomic<bool> id_was_told_{false};
  std::atomic<bool> warms_up_{false};
  OneCall captures_;
};

/// The tape's pool. Its results are never reused, so all it has to share is the count of their bytes.
class TapePool final : public PoolState {
 public:
  explicit TapePool(PoolId id) noexcept : PoolState(c10::Device(c10::kCPU), id) {}
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  void add(std::size_t bytes) noexcept { bytes_ += bytes; }
  void remove(std::size_t bytes) noexcept { bytes_ -= bytes; }

 private:
  std::atomic<std::size_t> bytes_{0};
};

/// The pool of that name on the device; made where there is none.
/// @throws DeviceError, UnsupportedError  As Graph's constructor.
std::shared_ptr<PoolState> pool_state(c10::Device device, PoolId id);
/// A pool of its own. @param family  Of make_pool_family() for this device.
std::shared_ptr<PoolState> make_pool_state(c10::Device device, const std::shared_ptr<PoolFamily>& family = nullptr);

}  // namespace pianola
