#pragma once
#include <c10/core/Device.h>

#include <cstddef>

namespace pianola::graph {

/// What is left of a device's memory.
struct FreeMemory {
  std::size_t of_driver =
      0;  ///< What the driver has, and torch may take of it (torch.cuda.set_per_process_memory_fraction).
  std::size_t cached =
      0;  ///< What torch's allocator holds in reserve outside of pools, in pieces perhaps: nothing for a pool.
  std::size_t returnable = 0;  ///< Of that, whole segments and pages, which torch.cuda.empty_cache() gives back.
};
/// Nothing where the driver does not say.
[[nodiscard]] FreeMemory free_memory_of(c10::DeviceIndex device);

/// Gives what torch's allocator holds unused back to the driver, if the driver has less than that: a pool can use nothing of it, and the
/// run before a recording has left as much there as the recording takes. Call it where nobody captures.
void make_room_for_a_pool(c10::DeviceIndex device);

/// Bytes that allocations outside of captures may still get: both.
[[nodiscard]] std::size_t free_memory(c10::DeviceIndex device);

}  // namespace pianola::graph
