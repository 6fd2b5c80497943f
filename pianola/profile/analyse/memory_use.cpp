#include <pianola/profile/analyse/memory_use.hpp>

#include <pianola/profile/analyse/median.hpp>
#include <pianola/profile/analyse/memory_blocks.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

std::uint64_t typical_peak(const std::vector<MemoryBlock>& blocks, const std::vector<TimeSpan>& spans) {
  std::vector<std::uint64_t> peaks;
  for (const TimeSpan span : spans) peaks.push_back(peak_bytes(made_within(blocks, span)));
  return median(std::move(peaks));
}

// What was so at the begin of the span counts as well.
void add_totals(const Timeline& timeline, const Analysis& analysis, TimeSpan span, MemoryUse& use) {
  const MemoryEvent* before = nullptr;
  const auto add = [&use](const MemoryEvent& event) {
    use.allocated = std::max(use.allocated, event.allocated);
    use.reserved = std::max(use.reserved, event.reserved);
  };
  for (const MemoryEvent& event : timeline.memory) {
    if (event.process != analysis.process || event.device != analysis.device || event.time >= span.end) continue;
    if (event.time < span.begin) {
      before = &event;
    } else {
      add(event);
    }
  }
  if (before != nullptr) add(*before);
}

// What profile() found. Else what the device has beyond what torch's allocator held in the end.
void add_left(const Timeline& timeline, const Analysis& analysis, MemoryUse& use) {
  const auto device = std::ranges::find(timeline.devices, analysis.device, &MemoryOfDevice::device);
  if (device == timeline.devices.end()) return;
  use.left = device->left;
  if (use.left || device->total == 0) return;
  for (const MemoryEvent& event : timeline.memory) {
    if (event.process != analysis.process || event.device != analysis.device || event.reserved == 0) continue;
    const std::uint64_t unused = event.reserved - std::min(event.reserved, event.allocated);
    use.left = {
        .of_driver = device->total - std::min(device->total, event.reserved), .cached = unused, .returnable = unused};
  }
  use.left_at_most = use.left.has_value();
}

}  // namespace

std::optional<MemoryUse> memory_use(const Timeline& timeline, const Analysis& analysis) {
  if (timeline.memory.empty()) return std::nullopt;
  const std::vector<TimeSpan> spans = allocation_spans(timeline, analysis);
  MemoryUse use{.own = typical_peak(memory_blocks(timeline, analysis.process, analysis.device), spans)};
  // Of the CPU torch counts from the profiler's begin on only.
  if (analysis.device < 0) return use;
  add_totals(timeline, analysis, {spans.front().begin, spans.back().end}, use);
  add_left(timeline, analysis, use);
  return use;
}

}  // namespace pianola::profiling
