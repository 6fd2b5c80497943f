#include <pianola/profile/read/work_origin.hpp>

#include <pianola/core/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

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

// By process and correlation the graph; 0: not known yet.
using LaunchKey = std::pair<std::int32_t, std::uint64_t>;
using Launches = std::map<LaunchKey, std::uint64_t>;

Launches recorded_launches(const Timeline& timeline) {
  Launches launches;
  for (const HostCall& call : timeline.calls) {
    if (call.kind == HostCall::Kind::graph_launch && call.correlation != 0) {
      launches.emplace(LaunchKey(call.process, call.correlation), 0);
    }
  }
  return launches;
}

std::vector<LaunchKey> sorted_calls(const Timeline& timeline) {
  std::vector<LaunchKey> calls;
  for (const HostCall& call : timeline.calls) calls.emplace_back(call.process, call.correlation);
  std::ranges::sort(calls);
  return calls;
}

// What one call issues is one kernel, or several copies, unless it launches a graph.
std::size_t add_unrecorded_launches(const Timeline& timeline, Launches& launches) {
  std::vector<std::pair<LaunchKey, bool>> issued;  // and whether it is a kernel, those first
  for (const DeviceWork& work : timeline.work) {
    if (work.graph != 0 || work.correlation == 0) continue;
    issued.push_back({{work.process, work.correlation}, work.kind != DeviceWork::Kind::kernel});
  }
  std::ranges::sort(issued);
  const std::vector<LaunchKey> calls = sorted_calls(timeline);
  std::size_t added = 0;
  for (auto first = issued.begin(); first != issued.end();) {
    const auto next = std::find_if(first, issued.end(), [&](const auto& one) { return one.first != first->first; });
    const bool has_kernels = !first->second;
    if (next - first > 1 && has_kernels && !std::ranges::binary_search(calls, first->first)) {
      launches.emplace(first->first, 0);
      ++added;
    }
    first = next;
  }
  return added;
}

}  // namespace

void find_processes(Timeline& timeline, std::size_t processes) {
  std::unordered_map<std::uint64_t, std::int32_t> known;
  if (processes > 1) known = callers(timeline.calls);
  std::size_t unknown = 0;
  for (DeviceWork& work : timeline.work) {
    if (work.process >= 0) continue;
    const auto caller = known.find(work.correlation);
    const bool found = caller != known.end() && caller->second >= 0;
    work.process = found ? caller->second : 0;
    if (!found && processes > 1) ++unknown;
  }
  if (unknown != 0) {
    timeline.notes.push_back(
        fmt::format("the trace has {} processes and does not say which of them issued {} piece{} of work: counted as "
                    "the first one's",
                    processes, unknown, plural(unknown)));
  }
}

void find_graphs(Timeline& timeline) {
  Launches launches = recorded_launches(timeline);
  const std::size_t unrecorded = add_unrecorded_launches(timeline, launches);
  if (launches.empty()) return;
  for (const DeviceWork& work : timeline.work) {
    if (work.graph == 0) continue;
    const auto launch = launches.find({work.process, work.correlation});
    if (launch != launches.end()) launch->second = work.graph;
  }
  std::size_t unnamed = 0;
  for (DeviceWork& work : timeline.work) {
    if (work.graph != 0) continue;
    const auto launch = launches.find({work.process, work.correlation});
    if (launch == launches.end()) continue;
    if (launch->second == 0) ++unnamed;
    work.graph = std::max<std::uint64_t>(launch->second, 1);
  }
  if (unrecorded != 0) {
    timeline.notes.push_back(fmt::format(
        "{} launch{} of graphs {} not recorded, as torch.profiler does with the driver's: known by {} work, "
        "their time on the host is not",
        unrecorded, unrecorded == 1 ? "" : "es", unrecorded == 1 ? "was" : "were", unrecorded == 1 ? "its" : "their"));
  }
  if (unnamed != 0) {
    timeline.notes.push_back(fmt::format("{} piece{} of work of graph launches name{} no graph: counted as graph 1",
                                         unnamed, plural(unnamed), unnamed == 1 ? "s" : ""));
  }
}

}  // namespace pianola::profiling
