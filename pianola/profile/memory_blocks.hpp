#pragma once
#include <pianola/profile/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <array>
#include <cstddef>
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

/// Bytes by the kind of segment of torch's CUDA allocator that they come from: of blocks up to 1 MiB, of those below
/// 10 MiB, of larger ones. A segment holds blocks of one kind.
/// Source:  c10/core/AllocatorConfig.h, torch 2.11; kMinLargeAlloc and its neighbours.
using SegmentBytes = std::array<std::uint64_t, 3>;

/// Of each kind the most at a time.
[[nodiscard]] SegmentBytes peak_by_segment(std::span<const MemoryBlock> blocks);
/// Of each kind the sum.
[[nodiscard]] SegmentBytes sum_by_segment(std::span<const MemoryBlock> blocks);

/// What a pool of its own takes of the device to hold so much: whole segments of 2, 20 and 2 MiB. Fragments come on top.
[[nodiscard]] std::uint64_t pool_bytes(const SegmentBytes& bytes);

}  // namespace pianola::profiling
