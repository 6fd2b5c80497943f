#pragma once
#include <pianola/memory/allocator_model.hpp>

#include <c10/core/AllocatorConfig.h>

namespace pianola::graph {

/// What torch's allocator makes now, for forecasts; on the CPU, what it would make.
[[nodiscard]] inline memory::SegmentKind segment_kind() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments() ? memory::SegmentKind::expandable
                                                                                      : memory::SegmentKind::fixed;
}

}  // namespace pianola::graph
