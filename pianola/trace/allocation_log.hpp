#pragma once
#include <pianola/trace/allocator_events.hpp>

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace pianola::trace {

/// While it lives, notes what torch's allocators hand out: on the CPU to this thread, on CUDA to all. See Note [Memory that no
/// operation made].
class AllocationLog final : private AllocatorListener {
 public:
  using Of = AllocatorWatch::Of;
  explicit AllocationLog(Of of = Of::all_devices) : watch_(*this, of) {}

  /// Whether this is the begin of a block that was handed out since the log began, and while it was not paused.
  [[nodiscard]] bool contains(const void* data);
  /// While paused, a block that is handed out is not the log's, even if it lies where one of the log's was freed.
  void pause(bool paused);
  /// From any thread: nothing is noted any more.
  void stop() noexcept;

 private:
  void on_memory(const AllocatorEvent& event) override;
  void settle();

  std::mutex mutex_;
  bool paused_ = false;
  bool stopped_ = false;
  std::vector<std::uintptr_t> fresh_;  // not in `known_` yet
  ska::flat_hash_set<std::uintptr_t> known_;
  AllocatorWatch watch_;  // behind what it writes
};

}  // namespace pianola::trace
