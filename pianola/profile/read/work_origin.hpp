#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola::profiling {

/// DeviceWork::process, where a profiler did not say it.
inline constexpr std::int32_t kUnknownProcess = -1;

/// Finds out which process issued the work of kUnknownProcess: that of the call with its correlation. What stays unknown
/// counts as the first one's, and a note says so.
///
/// @param processes  With calls or ranges.
void find_processes(Timeline& timeline, std::size_t processes);

/// Finds out which graph work belongs to that names none, but was issued by a call that launched a graph; or, where the call
/// was not recorded, together with other work. Where no work of the launch names a graph it counts as graph 1. Notes say so.
void find_graphs(Timeline& timeline);

/// The graph that a node is of, by its number: CUPTI makes that with the number of the graph in the upper half.
[[nodiscard]] constexpr std::uint64_t graph_of_node(std::uint64_t node) noexcept { return node >> 32U; }

}  // namespace pianola::profiling
