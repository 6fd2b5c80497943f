#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace pianola::memory {

/// How torch's caching allocator takes memory of the device.
enum class SegmentKind : std::uint8_t {
  fixed,       ///< In segments of one size for life, its default.
  expandable,  ///< In segments that grow by pages, which expandable_segments:True of PYTORCH_CUDA_ALLOC_CONF asks for.
};

/// Bytes of a page of an expandable segment, which is mapped and given back as a whole: of small blocks, or of larger ones.
[[nodiscard]] constexpr std::uint64_t expandable_page(bool is_large) {
  return std::uint64_t{is_large ? 20U : 2U} << 20U;
}

/// What PYTORCH_CUDA_ALLOC_CONF asks of torch's allocator, as far as it changes what a pool takes; as it is where nothing is asked.
/// garbage_collection_threshold is not here: what it gives back lies outside of pools.
struct AllocatorSettings {
  SegmentKind kind = SegmentKind::fixed;  ///< expandable_segments.
  /// max_split_size_mb: a free piece of so much is not split, and serves requests of so much alone.
  std::uint64_t max_split = std::numeric_limits<std::uint64_t>::max();
  /// max_non_split_rounding_mb: such a request takes no piece that is larger by so much.
  std::uint64_t max_non_split_rounding = std::uint64_t{20} << 20U;
  /// large_segment_size_mb: segments of blocks below 10 MiB, and pages of expandable segments.
  std::uint64_t large_segment = std::uint64_t{20} << 20U;
  /// roundup_power2_divisions: into how many parts the range from a power of two to the next one is divided, whose ends sizes are rounded
  /// up to; of sizes below 2 MiB, below 4 MiB, and so on. Up to 1: they are not.
  std::array<std::uint64_t, 16> roundup_divisions = {};
};

/// What torch's allocator makes of a request.
[[nodiscard]] PIANOLA_API std::uint64_t rounded_request(std::uint64_t bytes, const AllocatorSettings& settings);

/// What a pool takes of the device to serve the blocks one after the other: whole segments, as torch's caching
/// allocator takes them, on one stream. The pool is empty at first and gives nothing back.
///
///   small   up to 1 MiB; larger blocks are large, and no segment has both
///   place   the smallest free piece of a segment that holds the block; among equals the one of the lowest address
///   rest    of the piece: free for others, of large ones only if it is more than 1 MiB
///   freed   at once for others, as one piece with what is free beside it
///   else    a new segment: for a small block 2 MiB, below 10 MiB 20 MiB, above that the block in multiples of 2 MiB
///
/// With expandable segments there is one for small blocks and one for large ones:
///
///   place   the smallest free piece before the last one that holds the block; else the last one
///   rest    free for others, of whatever size
///   else    the last piece, where it is free, with as many pages mapped behind it as are missing
///
/// Blocks are multiples of 512 bytes. Torch reports them with their rest where that is not free: a block of a profile
/// may be larger than what was asked for, by up to 1 MiB.
///
/// @param blocks  In the order in which they were made. What is freed at the time at which one is made is free for it.
/// Cost:    n log n.
/// Source:  c10/cuda/CUDACachingAllocator.cpp (round_size, get_pool, get_free_block, should_split, get_allocation_size,
///          try_merge_blocks, try_allocate_expandable_block) and c10/core/AllocatorConfig.h, torch 2.11.
[[nodiscard]] PIANOLA_API std::uint64_t pool_bytes(std::span<const Block> blocks, const AllocatorSettings& settings);
[[nodiscard]] inline std::uint64_t pool_bytes(std::span<const Block> blocks, SegmentKind kind = SegmentKind::fixed) {
  return pool_bytes(blocks, AllocatorSettings{.kind = kind});
}

/// Bytes by the size of the segments that are taken for them: for blocks up to 1 MiB, below 10 MiB, and larger ones.
using SegmentBytes = std::array<std::uint64_t, 3>;

/// Of each the most at a time.
[[nodiscard]] PIANOLA_API SegmentBytes peak_by_segment(std::span<const Block> blocks);
/// Of each the sum.
[[nodiscard]] PIANOLA_API SegmentBytes sum_by_segment(std::span<const Block> blocks);

/// Where no order of blocks is known: whole segments of 2, 20 and 2 MiB. Fragments come on top; and what is free in a
/// segment of large blocks may hold those below 10 MiB.
[[nodiscard]] PIANOLA_API std::uint64_t in_whole_segments(const SegmentBytes& bytes);

}  // namespace pianola::memory
