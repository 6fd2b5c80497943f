// What a trace does not say of each event but can be told when all of them are known: the second half of ChromeEvents.
#include <pianola/core/plural.hpp>
#include <pianola/profile/read/chrome_event.hpp>
#include <pianola/profile/read/host_ranges.hpp>
#include <pianola/profile/read/nesting.hpp>
#include <pianola/profile/read/work_origin.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace pianola::profiling {
void ChromeEvents::finish(Nanoseconds base) {
  find_processes(timeline_, processes_.size());  // Torch names the device of work, not the process.
  find_graphs(timeline_);                        // Older traces name no graphs, and some name them for kernels alone.
  if (calls_may_nest_) keep_outer_calls(timeline_);
  move(base);
  timeline_.sort();
  nest_ranges(timeline_);
  if (timeline_.work.empty()) profile_cpu();
  note_left_out();
}

void ChromeEvents::move(Nanoseconds base) {
  const auto move_all = [base](auto& events) {
    for (auto& event : events) event.time = {event.time.begin + base, event.time.end + base};
  };
  if (base == 0) return;
  const TimeSpan extent = timeline_.extent();
  TimeCheck("the " + timeline_.source)({extent.begin + base, extent.end + base},
                                       [] { return std::string("all events, moved by \"baseTimeNanoseconds\""); });
  move_all(timeline_.work);
  move_all(timeline_.calls);
  move_all(timeline_.ranges);
  for (MemoryEvent& event : timeline_.memory) event.time += base;
}

void ChromeEvents::profile_cpu() {
  const auto issues = [](const HostCall& call) {
    return call.kind == HostCall::Kind::launch || call.kind == HostCall::Kind::graph_launch;
  };
  const auto launches = static_cast<std::size_t>(std::count_if(timeline_.calls.begin(), timeline_.calls.end(), issues));
  if (launches == 0) {
    timeline_.work = outermost_operations(timeline_);
    return;
  }
  timeline_.notes.push_back(fmt::format(
      "the trace has {} call{} that launch{} work, but no work of a device: it was cut, or ProfilerActivity.CUDA was "
      "off",
      launches, plural(launches), launches == 1 ? "es" : ""));
}

void ChromeEvents::note_left_out() {
  if (without_duration_ != 0) {
    timeline_.notes.push_back(fmt::format("{} event{} without a duration {} left out", without_duration_,
                                          plural(without_duration_), without_duration_ == 1 ? "was" : "were"));
  }
  if (malformed_ != 0) {
    timeline_.notes.push_back(
        fmt::format("{} event{} {} left out: a field is missing or of the wrong type, the first time in '{}'",
                    malformed_, plural(malformed_), malformed_ == 1 ? "was" : "were", first_malformed_));
  }
}

}  // namespace pianola::profiling
