#pragma once
#include <c10/core/Device.h>

#include <cstddef>

namespace pianola::graph {

/// Bytes that an allocation may still get on the device: what the driver has left, and what torch's allocator holds in
/// reserve, in pieces perhaps. 0 where the driver does not say.
[[nodiscard]] std::size_t free_memory(c10::DeviceIndex device);

}  // namespace pianola::graph
