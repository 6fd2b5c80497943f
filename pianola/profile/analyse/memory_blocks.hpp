#pragma once
#include <pianola/memory/block.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace pianola::profiling {

/// That the allocator handed out while the profiler watched, by the host's clock.
using MemoryBlock = memory::Block;

/// Of one device, in the order in which they were made. A block whose end the profile does not show, since its address
/// is handed out once more, ends there.
[[nodiscard]] std::vector<MemoryBlock> memory_blocks(const Timeline& timeline, std::int32_t process,
                                                     std::int32_t device);

/// Those that were made within the span.
[[nodiscard]] std::span<const MemoryBlock> made_within(std::span<const MemoryBlock> blocks, TimeSpan span);

/// When the memory of each iteration is made, on the host. Memory is asked for before the launch of what fills it: where
/// iterations begin with a launch, theirs begins when the launch before that one has returned.
[[nodiscard]] std::vector<TimeSpan> allocation_spans(const Timeline& timeline, const Analysis& analysis);

}  // namespace pianola::profiling
