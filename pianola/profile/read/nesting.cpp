#include <pianola/profile/read/nesting.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

// Thread after thread, what is outside before what is inside.
template <class Event>
void sort_by_thread(std::vector<Event>& events) {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tuple(a.process, a.thread, a.time.begin, -a.time.end) <
           std::tuple(b.process, b.thread, b.time.begin, -b.time.end);
  });
}

template <class Event>
bool same_thread(const Event& a, const Event& b) {
  return a.process == b.process && a.thread == b.thread;
}

using Renamed = std::map<std::int32_t, std::unordered_map<std::uint64_t, std::uint64_t>>;  // by process

void rename_correlations(std::vector<DeviceWork>& all, const Renamed& renamed) {
  for (DeviceWork& work : all) {
    const auto of_process = renamed.find(work.process);
    if (of_process == renamed.end()) continue;
    const auto found = of_process->second.find(work.correlation);
    if (found != of_process->second.end()) work.correlation = found->second;
  }
}

}  // namespace

void keep_outer_calls(Timeline& timeline) {
  sort_by_thread(timeline.calls);
  Renamed renamed;
  std::vector<HostCall> outer;
  for (const HostCall& call : timeline.calls) {
    const bool inside = !outer.empty() && same_thread(outer.back(), call) && call.time.end <= outer.back().time.end;
    if (!inside) {
      outer.push_back(call);
    } else if (call.correlation != 0 && call.correlation != outer.back().correlation) {
      renamed[call.process].emplace(call.correlation, outer.back().correlation);
    }
  }
  timeline.calls = std::move(outer);
  if (!renamed.empty()) rename_correlations(timeline.work, renamed);
}

std::size_t keep_nested_ranges(Timeline& timeline) {
  sort_by_thread(timeline.ranges);
  std::vector<HostRange> kept, open;
  for (const HostRange& range : timeline.ranges) {
    while (!open.empty() && (!same_thread(open.back(), range) || open.back().time.end <= range.time.begin)) {
      open.pop_back();
    }
    if (!open.empty() && range.time.end > open.back().time.end) continue;
    open.push_back(range);
    kept.push_back(range);
  }
  const std::size_t left_out = timeline.ranges.size() - kept.size();
  timeline.ranges = std::move(kept);
  return left_out;
}

}  // namespace pianola::profiling
