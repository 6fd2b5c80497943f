#include <pianola/profile/analyse/memory_blocks.hpp>

#include <pianola/profile/call_kind.hpp>

#include <algorithm>
#include <unordered_map>

namespace pianola::profiling {
namespace {

// The end of the process's last launch that began before `time`; where there is none, the begin of the timeline.
Nanoseconds end_of_launch_before(const Timeline& timeline, std::int32_t process, Nanoseconds time) {
  auto call = std::ranges::lower_bound(timeline.calls, time, {}, [](const HostCall& one) { return one.time.begin; });
  while (call != timeline.calls.begin()) {
    --call;
    if (call->process == process && issues_work(*call)) return std::min(call->time.end, time);
  }
  return timeline.extent().begin;
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

}  // namespace pianola::profiling
