#include <pianola/graph/cuda/pool_blocks.hpp>

#include <pianola/graph/cuda/planned_region.hpp>

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

}  // namespace pianola::graph
