#pragma once
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace pianola::auditing {

// Note [Memory that no operation made]
// Not all of a step's tensors are results of operations: torch turns numbers into tensors without one, and code that
// torch.compile wrote allocates by itself. Only the allocator tells such memory from a tensor of somebody else's. On
// the CPU a forwarding allocator is put before torch's while a run is observed; on CUDA torch's own hook is used.

/// While it lives, notes what torch's allocators hand out: on the CPU to this thread, on CUDA to all.
class AllocationLog {
 public:
  AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;
  ~AllocationLog();

  /// Whether this is the begin of a block that was handed out since the log began.
  [[nodiscard]] bool contains(const void* data);

  /// For the allocators.
  void note(const void* data);

 private:
  AllocationLog* outer_;  // of this thread
  std::mutex mutex_;
  std::vector<const void*> fresh_;  // not in `known_` yet
  ska::flat_hash_set<const void*> known_;
};

}  // namespace pianola::auditing
