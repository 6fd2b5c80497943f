#include <pianola/graph/cuda/pool_blocks.hpp>

#include <pianola/graph/cuda/planned_region.hpp>
#include <pianola/memory/allocator_model.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::vector<allocator::SegmentInfo> segments_of(c10::Device device, c10::MempoolId_t pool) {
  std::vector<allocator::SegmentInfo> segments = allocator::snapshot(pool, /*include_traces=*/false).segments;
  std::erase_if(segments, [&](const auto& segment) { return segment.device != device.index(); });
  std::ranges::sort(segments, {}, &allocator::SegmentInfo::address);
  return segments;
}

std::vector<ByteSpan> held_in(const allocator::SegmentInfo& segment) {
  std::vector<ByteSpan> held;
  std::uintptr_t address = segment.address;
  for (const auto& block : segment.blocks) {
    const ByteSpan span = {.begin = address, .end = address + block.size};
    address = span.end;
    if (!block.active) continue;
    if (const auto inside = PlannedRegion::held_in(span)) {
      held.insert(held.end(), inside->begin(), inside->end());
    } else {
      held.push_back(span);
    }
  }
  return held;
}

// A stretch of mapped pages begins with a page.
std::size_t returnable_bytes(const allocator::SegmentInfo& segment) {
  if (!segment.is_expandable) return segment.active_size == 0 ? segment.total_size : 0;
  const std::size_t page = memory::expandable_page(segment.is_large);
  std::size_t offset = 0, bytes = 0;
  for (const auto& block : segment.blocks) {
    const std::size_t first = (offset + page - 1) / page * page;
    offset += block.size;
    const std::size_t last = offset / page * page;
    if (!block.active && last > first) bytes += last - first;
  }
  return bytes;
}

}  // namespace pianola::graph
