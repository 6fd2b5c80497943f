#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>

namespace pianola::profiling {

/// Keeps, of calls of one thread that lie inside each other, the outer one: the runtime calls the driver, and both may be
/// recorded. Work that an inner call issued is the outer one's. The order of calls changes.
void keep_outer_calls(Timeline& timeline);

/// Leaves out ranges that overlap another one of their thread without lying inside it, as NVTX allows: of two the one
/// that begins later. The order of ranges changes.
///
/// @return  How many.
std::size_t keep_nested_ranges(Timeline& timeline);

}  // namespace pianola::profiling
