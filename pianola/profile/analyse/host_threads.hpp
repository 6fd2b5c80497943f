#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/issued.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace pianola::profiling {

/// What the host did at one moment of an iteration: issued work, or waited for the device.
struct HostAct {
  Nanoseconds time = 0;
  std::uint32_t call = 0;     ///< In Timeline::calls; on a CPU Issued::kNone.
  std::uint32_t kernels = 0;  ///< That it issued.
  Nanoseconds busy = 0;       ///< Of all work that it issued.
  Nanoseconds idle = 0;       ///< Of the gaps that its work ended; of a wait, of those that it is the culprit of.
  bool waits = false;
};

/// One thread's ranges, by index in Timeline::ranges, and acts; both by time.
struct HostThread {
  std::vector<std::uint32_t> ranges;
  std::vector<HostAct> acts;
};

/// By the thread's number. A call that both issues work and waits makes two acts.
[[nodiscard]] std::map<std::int64_t, HostThread> host_threads(const DeviceWorkList& list, const Issued& issued,
                                                              const std::vector<Iteration>& iterations,
                                                              const std::vector<Gap>& gaps);

/// Goes through a thread in time. Calls `visitor.enter(range)`, `visitor.act(act, open)` with the ranges around it, the
/// innermost last, and `visitor.leave(range)`; ranges by their index.
template <class Visitor>
void walk(const std::vector<HostRange>& ranges, const HostThread& thread, Visitor& visitor) {
  std::vector<std::uint32_t> open;
  const auto leave_until = [&](Nanoseconds time) {
    for (; !open.empty() && ranges[open.back()].time.end <= time; open.pop_back()) visitor.leave(open.back());
  };
  const auto enter = [&](std::uint32_t range) {
    leave_until(ranges[range].time.begin);
    visitor.enter(range);
    open.push_back(range);
  };
  auto next = thread.ranges.begin();
  for (const HostAct& act : thread.acts) {
    for (; next != thread.ranges.end() && ranges[*next].time.begin <= act.time; ++next) enter(*next);
    leave_until(act.time);
    visitor.act(act, std::span<const std::uint32_t>(open));
  }
  for (; next != thread.ranges.end(); ++next) enter(*next);
  for (; !open.empty(); open.pop_back()) visitor.leave(open.back());
}

}  // namespace pianola::profiling
