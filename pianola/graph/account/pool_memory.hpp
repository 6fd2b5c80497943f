#pragma once
#include <pianola/graph/pool.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>

namespace pianola {

/// What an executable graph takes beside its pool.
struct ExecutableMemory {
  std::size_t device =
      0;  ///< Bytes of the device, as the driver counted them when it was made: in steps of 2 MiB, as a rule.
  std::size_t host = 0;  ///< By how much the process grew on the host meanwhile.

  ExecutableMemory& operator+=(const ExecutableMemory& more) noexcept {
    device += more.device;
    host += more.host;
    return *this;
  }
};

/// What a pool has. `bytes` is `held`, `scratch` and `fragments` together.
struct PoolMemory {
  PoolId id = {0, 0};
  std::size_t bytes = 0;      ///< On the device; where it sleeps, what it will have again.
  std::size_t held = 0;       ///< In blocks that somebody holds: results, gradients, what backward passes need.
  std::size_t scratch = 0;    ///< Of nobody between replays, and written by them.
  std::size_t fragments = 0;  ///< No graph of the pool that has a trace ever had it.
  std::size_t workspaces =
      0;  ///< Of cuBLAS, for its graphs: not in `bytes` but where a graph made them while it was recorded.
  std::size_t graphs = 0;  ///< That share it.
  ExecutableMemory executables = {};
  bool is_asleep = false;
};

/// The graphs that live in a pool. Any thread may call.
class PoolGraphs {
 public:
  /// What a graph's replays are launched by, and what it can do without while its pool sleeps.
  class Executables {
   public:
    Executables() = default;
    Executables(const Executables&) = delete;
    Executables& operator=(const Executables&) = delete;
    virtual ~Executables() = default;

    virtual void drop_executables() noexcept = 0;
    /// Those that were dropped. @return  What they take. @throws OutOfMemoryError, DeviceError  Drop what there is, and try again.
    virtual ExecutableMemory make_executables() = 0;
  };

  /// @param executables  That may be dropped, from now on until remove(). They call nothing here meanwhile.
  void add(const void* graph, Executables& executables);
  void set(const void* graph, ExecutableMemory executable);
  /// It has more, besides what it has. Nothing where it is gone by now.
  void add_memory(const void* graph, ExecutableMemory more);
  /// Nothing where it was not set.
  void remove(const void* graph) noexcept;

  [[nodiscard]] std::size_t count() const;
  /// Of all of them; one that graphs share is in it once.
  [[nodiscard]] ExecutableMemory executables() const;

  /// No graph is replayed, captured or changed meanwhile.
  void drop_executables() noexcept;
  /// Those that were dropped. @throws OutOfMemoryError, DeviceError  All of them are dropped again.
  void make_executables();

  /// @param goes_to_sleep  Called by suspend(), before the pool's memory goes; what it throws keeps the pool awake. It calls nothing here.
  void tell_of_sleep(const void* who, std::function<void()> goes_to_sleep);
  void forget_sleep_of(const void* who) noexcept;
  /// Calls all of these.
  void go_to_sleep() const;

 private:
  struct One {
    ExecutableMemory memory = {};
    Executables* executables = nullptr;
    bool are_dropped = false;
  };

  void drop_all() noexcept;  // under the lock

  mutable std::mutex mutex_;
  std::map<const void*, One> all_;
  std::map<const void*, std::function<void()>> told_of_sleep_;
};

}  // namespace pianola
