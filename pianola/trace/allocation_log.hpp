#pragma once
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace pianola::trace {

// Note [Memory that no operation made]
// Not all of a step's tensors are results of operations: torch turns numbers into tensors without one, and code that
// torch.compile wrote allocates by itself. Only the allocator tells such memory from a tensor of somebody else's. On
// the CPU a forwarding allocator is put before torch's while a run is observed; on CUDA torch's own hook is used.

/// While it lives, notes what torch's allocators hand out: on the CPU to this thread, on CUDA to all.
class AllocationLog {
 public:
  enum class Of { cpu, all_devices };
  explicit AllocationLog(Of of = Of::all_devices);
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;
  ~AllocationLog();

  /// Whether this is the begin of a block that was handed out since the log began, and while it was not paused.
  [[nodiscard]] bool contains(const void* data);
  /// Whether logs that are open see what the CPU's allocator hands out: not where somebody has put in one with a priority.
  [[nodiscard]] static bool sees_the_cpu();
  /// While paused, a block that is handed out is not the log's, even if it lies where one of the log's was freed.
  void pause(bool paused);

  /// For the allocators.
  void note(const void* data);
  /// And to the logs of this thread around it.
  void note_for_all(const void* data);
  /// From any thread: nothing is noted any more.
  void stop() noexcept;
  [[nodiscard]] Of of() const noexcept { return of_; }

 private:
  void settle();

  Of of_;
  AllocationLog* outer_;  // of this thread
  std::mutex mutex_;
  bool paused_ = false;
  bool stopped_ = false;
  std::vector<const void*> fresh_;  // not in `known_` yet
  ska::flat_hash_set<const void*> known_;
};

}  // namespace pianola::trace
