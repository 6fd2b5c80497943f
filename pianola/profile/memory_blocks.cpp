#include <pianola/profile/memory_blocks.hpp>

#include <pianola/profile/call_kind.hpp>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMostSmall = kMiB, kLeastLarge = 10 * kMiB;
constexpr SegmentBytes kSegment = {2 * kMiB, 20 * kMiB, 2 * kMiB};

std::size_t segment_of(const MemoryBlock& block) {
  if (block.bytes <= kMostSmall) return 0;
  return block.bytes < kLeastLarge ? 1 : 2;
}

// The end of the process's last launch that began before `time`; where there is none, the begin of the timeline.
Nanoseconds end_of_launch_before(const Timeline& timeline, std::int32_t process, Nanoseconds time) {
  auto call = std::ranges::lower_bound(timeline.calls, time, {}, [](const HostCall& one) { return one.time.begin; });
  while (call != timeline.calls.begin()) {
    --call;
    if (call->process == process && issues_work(*call)) return std::min(call->time.end, time);
  }
  return timeline.extent().begin;
}

std::vector<MemoryBlock> of_segment(std::span<const MemoryBlock> blocks, std::size_t segment) {
  std::vector<MemoryBlock> chosen;
  std::ranges::copy_if(blocks, std::back_inserter(chosen),
                       [&](const MemoryBlock& block) { return segment_of(block) == segment; });
  return chosen;
}

}  // namespace

std::vector<MemoryBlock> memory_blocks(const Timeline& timeline, std::int32_t process, std::int32_t device) {
  std::vector<MemoryBlock> blocks;
  std::unordered_map<std::uint64_t, std::size_t> live;  // by address
  for (const MemoryEvent& event : timeline.memory) {
    if (event.process != process || event.device != device || event.bytes == 0) continue;
    if (const auto known = live.find(event.address); known != live.end()) {
      MemoryBlock& block = blocks[known->second];
      block.freed = std::max(event.time, block.made + 1);  // the clock may stand still between the two
      live.erase(known);
    }
    if (event.bytes < 0) continue;
    live.emplace(event.address, blocks.size());
    blocks.push_back({.made = event.time, .bytes = static_cast<std::uint64_t>(event.bytes), .thread = event.thread});
  }
  return blocks;
}

std::span<const MemoryBlock> made_within(std::span<const MemoryBlock> blocks, TimeSpan span) {
  const auto first = std::ranges::lower_bound(blocks, span.begin, {}, &MemoryBlock::made);
  const auto last = std::ranges::lower_bound(first, blocks.end(), span.end, {}, &MemoryBlock::made);
  return {first, last};
}

std::uint64_t peak_bytes(std::span<const MemoryBlock> blocks) {
  std::vector<std::pair<Nanoseconds, std::uint64_t>> freed;
  for (const MemoryBlock& block : blocks) freed.emplace_back(block.freed, block.bytes);
  std::ranges::sort(freed);
  std::uint64_t now = 0, peak = 0;
  auto next = freed.begin();
  for (const MemoryBlock& block : blocks) {
    for (; next->first <= block.made; ++next) now -= next->second;
    now += block.bytes;
    peak = std::max(peak, now);
  }
  return peak;
}

std::vector<TimeSpan> allocation_spans(const Timeline& timeline, const Analysis& analysis) {
  const bool begins_with_launch = analysis.by != IterationsBy::range && analysis.device >= 0;
  const auto begin_of = [&](Nanoseconds time) {
    return begins_with_launch ? end_of_launch_before(timeline, analysis.process, time) : time;
  };
  std::vector<TimeSpan> spans;
  for (const Iteration& iteration : analysis.iterations) {
    spans.push_back({begin_of(iteration.host.begin), begin_of(iteration.host.end)});
  }
  return spans;
}

SegmentBytes peak_by_segment(std::span<const MemoryBlock> blocks) {
  SegmentBytes peak = {};
  for (std::size_t i = 0; i < peak.size(); ++i) peak[i] = peak_bytes(of_segment(blocks, i));
  return peak;
}

SegmentBytes sum_by_segment(std::span<const MemoryBlock> blocks) {
  SegmentBytes sum = {};
  for (const MemoryBlock& block : blocks) sum[segment_of(block)] += block.bytes;
  return sum;
}

std::uint64_t pool_bytes(const SegmentBytes& bytes) {
  std::uint64_t pool = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) pool += (bytes[i] + kSegment[i] - 1) / kSegment[i] * kSegment[i];
  return pool;
}

}  // namespace pianola::profiling
