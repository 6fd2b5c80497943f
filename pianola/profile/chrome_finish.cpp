// What a trace does not say of each event but can be told when all of them are known: the second half of ChromeEvents.
#include <pianola/profile/chrome_event.hpp>
#include <pianola/profile/host_ranges.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::int32_t kSeveral = -2;

/// The process of the calls with a correlation; kSeveral where it is not unique.
std::unordered_map<std::uint64_t, std::int32_t> callers(const std::vector<HostCall>& calls) {
  std::unordered_map<std::uint64_t, std::int32_t> callers;
  for (const HostCall& call : calls) {
    if (call.correlation == 0) continue;
    const auto [caller, is_new] = callers.emplace(call.correlation, call.process);
    if (!is_new && caller->second != call.process) caller->second = kSeveral;
  }
  return callers;
}

const char* plural(std::size_t count) { return count == 1 ? "" : "s"; }

}  // namespace

void ChromeEvents::finish(Nanoseconds base) {
  find_processes();
  find_graphs();
  move(base);
  timeline_.sort();
  if (const std::size_t cut = nest(timeline_.ranges); cut != 0) {
    timeline_.notes.push_back(fmt::format("{} range{} ended after the one in which it began, and {} cut there", cut,
                                          plural(cut), cut == 1 ? "was" : "were"));
  }
  if (timeline_.work.empty()) profile_cpu();
  note_left_out();
}

/// Torch names the device of work, not the process; with one process there is no question.
void ChromeEvents::find_processes() {
  std::unordered_map<std::uint64_t, std::int32_t> known;
  if (pids_.size() > 1) known = callers(timeline_.calls);
  std::size_t unknown = 0;
  for (DeviceWork& work : timeline_.work) {
    if (work.process >= 0) continue;
    const auto caller = known.find(work.correlation);
    const bool found = caller != known.end() && caller->second >= 0;
    work.process = found ? caller->second : 0;
    if (!found && pids_.size() > 1) ++unknown;
  }
  if (unknown != 0) {
    timeline_.notes.push_back(
        fmt::format("the trace has {} processes and does not say which of them issued {} piece{} of work: counted as "
                    "the first one's",
                    pids_.size(), unknown, plural(unknown)));
  }
}

/// Older traces name no graphs, and some name them for kernels alone: then the launch tells.
void ChromeEvents::find_graphs() {
  std::map<std::pair<std::int32_t, std::uint64_t>, std::uint64_t> launches;  // The graph by process and correlation.
  for (const HostCall& call : timeline_.calls) {
    if (call.kind == HostCall::Kind::graph_launch && call.correlation != 0) {
      launches.emplace(std::pair(call.process, call.correlation), 0);
    }
  }
  if (launches.empty()) return;
  for (const DeviceWork& work : timeline_.work) {
    if (work.graph == 0) continue;
    const auto launch = launches.find({work.process, work.correlation});
    if (launch != launches.end()) launch->second = work.graph;
  }
  std::size_t unnamed = 0;
  for (DeviceWork& work : timeline_.work) {
    if (work.graph != 0) continue;
    const auto launch = launches.find({work.process, work.correlation});
    if (launch == launches.end()) continue;
    if (launch->second == 0) ++unnamed;
    work.graph = std::max<std::uint64_t>(launch->second, 1);
  }
  if (unnamed != 0) {
    timeline_.notes.push_back(fmt::format("{} piece{} of work of graph launches name{} no graph: counted as graph 1",
                                          unnamed, plural(unnamed), unnamed == 1 ? "s" : ""));
  }
}

void ChromeEvents::move(Nanoseconds base) {
  const auto move_all = [base](auto& events) {
    for (auto& event : events) event.time = {event.time.begin + base, event.time.end + base};
  };
  if (base == 0) return;
  move_all(timeline_.work);
  move_all(timeline_.calls);
  move_all(timeline_.ranges);
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
