#pragma once
#include <pianola/core/one_call.hpp>
#include <pianola/graph/pool_state.hpp>

#include <cstddef>

namespace pianola {

// Note [Sleep in two steps]
// Ranks whose graphs communicate sleep and wake together (Note [Votes of ranks]). So each call first does what may fail and can be taken
// back, then they vote, and only then it does the rest. Taken back is what was begun, where it is not finished. Meanwhile replays are
// refused as in a pool that sleeps.

/// A suspend() that has begun: what is held is on the host.
class PoolState::Suspending {
 public:
  /// @throws UsageError, c10::Error  As GraphPool::suspend(); nothing has changed.
  explicit Suspending(PoolState& pool);
  Suspending(const Suspending&) = delete;
  Suspending& operator=(const Suspending&) = delete;
  ~Suspending();

  /// @return  Bytes that went back. @throws DeviceError  The driver refused: it is awake.
  std::size_t finish(const SuspendOptions& options);

 private:
  PoolState& pool_;
  OneCall::Scope alone_;
  bool was_asleep_;
  bool is_finished_ = false;
};

/// A resume() that has begun: memory and executables are there, and go again where it is not finished.
class PoolState::Resuming {
 public:
  /// @throws UsageError, OutOfMemoryError, DeviceError  As GraphPool::resume(); it goes on sleeping.
  explicit Resuming(PoolState& pool);
  Resuming(const Resuming&) = delete;
  Resuming& operator=(const Resuming&) = delete;
  ~Resuming();

  void finish() noexcept;

 private:
  void make_executables();
  void sleep_on() noexcept;

  PoolState& pool_;
  OneCall::Scope alone_;
  bool was_asleep_;
  bool is_finished_ = false;
};

}  // namespace pianola
