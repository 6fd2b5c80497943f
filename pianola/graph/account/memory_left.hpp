#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/capture_room.hpp>

#include <c10/core/Device.h>

#include <optional>

namespace pianola {

/// What a device has left for captures, now. Nothing on the CPU, and on a GPU that torch has not used yet.
///
/// Threads:  Any. Streams: waits for none.
[[nodiscard]] PIANOLA_API std::optional<memory::FreeMemory> memory_left(c10::Device device);

}  // namespace pianola
