#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pianola::profiling {

/// A block of memory that the allocator handed out while the profiler watched.
struct MemoryBlock {
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

  Nanoseconds made = 0;
  Nanoseconds freed = kNever;
  std::uint64_t bytes = 0;
  std::int64_t thread = 0;  ///< That asked for it.
};

/// Of one device, in the order in which they were made. A block whose end the profile does not show, since its address
/// is handed out once more, ends there.
[[nodiscard]] std::vector<MemoryBlock> memory_blocks(const Timeline& timeline, std::int32_t process,
                                                     std::int32_t device);

/// Those that were made within the span.
[[nodiscard]] std::span<const MemoryBlock> made_within(std::span<const MemoryBlock> blocks, TimeSpan span);

/// The most bytes that are in use at a time, if there is nothing but these blocks.
[[nodiscard]] std::uint64_t peak_bytes(std::span<const MemoryBlock> blocks);

/// When the memory of each iteration is made, on the host. Memory is asked for before the launch of what fills it: where
/// iterations begin with a launch, theirs begins when the launch before that one has returned.
[[nodiscard]] std::vector<TimeSpan> allocation_spans(const Timeline& timeline, const Analysis& analysis);

}  // namespace pianola::profiling
