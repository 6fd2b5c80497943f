#pragma once
#include <cstddef>

namespace pianola {

/// Bytes that this process has in the host's memory now; 0 where the system does not tell.
[[nodiscard]] std::size_t resident_memory();

}  // namespace pianola
