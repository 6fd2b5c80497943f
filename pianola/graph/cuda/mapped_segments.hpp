#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/mapped_memory.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace pianola::graph {

// Note [Segments of Pianola's]
// Torch asks a pool's own allocator for segments, and cuts them up as ever. This one takes addresses and memory apart: a segment's memory
// may go back to the driver and come again (Note [Pools that sleep]), and segments of a region lie behind each other (Note [One region for
// the graphs of a pool]). Other GPUs and processes cannot read it.

/// What hands out such segments; nullptr: this version of torch is not known to bear it.
std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> mapped_segments();

/// The segment that begins there; nullptr: none of these.
MappedMemory* mapped_segment(std::uintptr_t address);
/// Whether one of them has this address.
bool is_in_mapped_segment(std::uintptr_t address);

/// Addresses for the segments of a region.
struct SegmentRange {
  std::shared_ptr<const ReservedAddresses> addresses =
      {};                ///< As many as the device has bytes; none before the first segment.
  std::size_t used = 0;  ///< Of these bytes, from the first on.
};

/// While it lives, the segments that this thread's requests make lie behind each other in a range.
class SegmentsInRange {
 public:
  explicit SegmentsInRange(SegmentRange& range);
  SegmentsInRange(const SegmentsInRange&) = delete;
  SegmentsInRange& operator=(const SegmentsInRange&) = delete;
  ~SegmentsInRange();

  /// The last one; nullopt: none was made.
  [[nodiscard]] const std::optional<ByteSpan>& made() const noexcept { return made_; }

  /// This thread's; nullptr: it has none. For the allocator.
  [[nodiscard]] static SegmentsInRange* now() noexcept;
  std::unique_ptr<MappedMemory> make(int device, std::size_t bytes);

 private:
  SegmentRange& range_;
  SegmentsInRange* before_;
  std::optional<ByteSpan> made_;
};

}  // namespace pianola::graph
