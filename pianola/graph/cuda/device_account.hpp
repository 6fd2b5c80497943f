#pragma once
#include <pianola/graph/account/process_memory.hpp>

#include <c10/core/Device.h>

#include <cstdint>

namespace pianola::graph {

/// Fills in what the driver and torch's allocator say. @param memory  With its device and pools.
void account_of_device(ProcessMemory& memory);

/// What is in use of a device, in bytes, outside of torch's allocator and of the executables of Pianola's graphs.
[[nodiscard]] std::int64_t used_outside_of_torch(c10::Device device);

}  // namespace pianola::graph
