#pragma once
#include <c10/core/Device.h>

#include <cstddef>

namespace pianola::graph {

/// Bytes that allocations may still get on the device: what the driver has left and torch may take of it (see
/// torch.cuda.set_per_process_memory_fraction), and what torch's allocator holds in reserve, in pieces perhaps. 0 where the
/// driver does not say.
[[nodiscard]] std::size_t free_memory(c10::DeviceIndex device);

}  // namespace pianola::graph
