#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <vector>

namespace pianola::profiling {

/// Makes the ranges of each thread lie inside each other or apart: one that ends after the range in which it begins is
/// cut at that range's end. Asynchronous annotations (of collectives) and rounded times overlap so.
///
/// @param ranges  Sorted, and sorted afterwards.
/// @return        How many were cut.
std::size_t nest(std::vector<HostRange>& ranges);

/// The same for a sorted timeline, whose notes tell of it.
void nest_ranges(Timeline& timeline);

/// The ATen operations (and other operators of torch's dispatcher, "vision::nms") that lie in no other, as work of
/// the CPU: device -1, stream the thread. Names are those of the ranges.
///
/// @param timeline  Its ranges sorted and nested.
[[nodiscard]] std::vector<DeviceWork> outermost_operations(const Timeline& timeline);

}  // namespace pianola::profiling
