#pragma once
#include <pianola/memory/capture_room.hpp>

#include <c10/core/Device.h>

#include <cstddef>

namespace pianola::graph {

/// What the driver has left is limited by torch.cuda.set_per_process_memory_fraction. Nothing where the driver does not say.
[[nodiscard]] memory::FreeMemory free_memory_of(c10::DeviceIndex device);

/// Gives what torch's allocator holds unused back to the driver, if the driver has less than that: a pool can use nothing of it, and the
/// run before a recording has left as much there as the recording takes. Call it where nobody captures.
void make_room_for_a_pool(c10::DeviceIndex device);

/// Bytes that allocations outside of captures may still get: both.
[[nodiscard]] std::size_t free_memory(c10::DeviceIndex device);

}  // namespace pianola::graph
