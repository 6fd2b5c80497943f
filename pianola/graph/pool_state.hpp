#pragma once
#include <pianola/graph/pool.hpp>

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <memory>

namespace pianola {

/// What the graphs of one pool share. Lives until the last of them, and the last handle, is gone.
class PoolState {
 public:
  PoolState(c10::Device device, PoolId id) noexcept : device_(device), id_(id) {}
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;
  virtual ~PoolState() = default;

  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  [[nodiscard]] PoolId id() const noexcept { return id_; }
  [[nodiscard]] virtual std::size_t bytes() const = 0;

  /// While the result lives, later captures in the pool do not use memory that earlier ones used and freed: their
  /// results survive replays of the earlier graphs, in any order. nullptr where memory is never reused.
  [[nodiscard]] virtual std::shared_ptr<void> reserve_used_memory() { return nullptr; }

 private:
  c10::Device device_;
  PoolId id_;
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
/// A pool of its own.
inline std::shared_ptr<PoolState> make_pool_state(c10::Device device) {
  return pool_state(device, GraphPool::new_id());
}

}  // namespace pianola
