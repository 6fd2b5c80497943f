#pragma once
#include <pianola/memory/allocator_model.hpp>

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pianola::graph {

/// What torch's allocator has been asked for now, by PYTORCH_CUDA_ALLOC_CONF say, for forecasts; on the CPU, what it would do.
[[nodiscard]] inline memory::AllocatorSettings allocator_settings() {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  const bool is_expandable = Config::use_expandable_segments();
  memory::AllocatorSettings settings{
      .kind = is_expandable ? memory::SegmentKind::expandable : memory::SegmentKind::fixed,
      .max_split = Config::max_split_size(),
      .max_non_split_rounding = Config::max_non_split_rounding_size(),
      .large_segment = Config::large_segment_size()};
  const std::vector<std::size_t>& divisions = Config::roundup_power2_divisions();
  std::copy_n(divisions.begin(), std::min(divisions.size(), settings.roundup_divisions.size()),
              settings.roundup_divisions.begin());
  return settings;
}

}  // namespace pianola::graph
