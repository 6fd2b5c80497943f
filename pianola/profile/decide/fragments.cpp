#include <pianola/profile/decide/fragments.hpp>

#include <pianola/profile/decide/obstacles.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

// What one launch of a graph did.
struct Fragment {
  const HostCall* launch;
  TimeSpan time;
  std::size_t kernels = 0;
};

using Launches = std::unordered_map<std::uint64_t, const HostCall*>;  // by correlation

Launches graph_launches_of(const Timeline& timeline, std::int32_t process) {
  Launches launches;
  for (const HostCall& call : timeline.calls) {
    const bool is_one = call.kind == HostCall::Kind::graph_launch && call.process == process && call.correlation != 0;
    if (is_one) launches.emplace(call.correlation, &call);
  }
  return launches;
}

// In the order in which they were launched.
std::vector<Fragment> fragments_of(const Timeline& timeline, const Analysis& analysis, const Iteration& iteration,
                                   const Launches& launches) {
  std::map<Nanoseconds, Fragment> by_launch;
  for (std::size_t i = iteration.first_work; i < iteration.last_work; ++i) {
    const DeviceWork& work = timeline.work[analysis.order[i]];
    const auto launch = work.graph == 0 ? launches.end() : launches.find(work.correlation);
    if (launch == launches.end()) continue;
    auto [entry, is_new] = by_launch.try_emplace(launch->second->time.begin,
                                                 Fragment{.launch = launch->second, .time = work.time, .kernels = 0});
    Fragment& fragment = entry->second;
    fragment.time = {std::min(fragment.time.begin, work.time.begin), std::max(fragment.time.end, work.time.end)};
    if (work.kind == DeviceWork::Kind::kernel) ++fragment.kernels;
  }
  std::vector<Fragment> fragments;
  for (auto& [time, fragment] : by_launch) fragments.push_back(fragment);
  return fragments;
}

Nanoseconds idle_within(const Analysis& analysis, TimeSpan span) {
  Nanoseconds idle = 0;
  for (const Gap& gap : analysis.gaps) {
    if (gap.cause == GapCause::copy) continue;  // the device is busy then
    idle += std::max<Nanoseconds>(std::min(gap.time.end, span.end) - std::max(gap.time.begin, span.begin), 0);
  }
  return idle;
}

// The calls of the process from one launch of a graph to the next.
std::vector<const HostCall*> calls_between(const Timeline& timeline, const Fragment& one, const Fragment& next) {
  std::vector<const HostCall*> calls;
  auto call = std::lower_bound(timeline.calls.begin(), timeline.calls.end(), one.launch->time.begin,
                               [](const HostCall& each, Nanoseconds time) { return each.time.begin < time; });
  for (; call != timeline.calls.end() && call->time.begin < next.launch->time.begin; ++call) {
    if (call->process == one.launch->process && &*call != one.launch) calls.push_back(&*call);
  }
  return calls;
}

// Of several waits the first; work that the host issues itself by where it does.
Obstacle cause_of(const Timeline& timeline, const std::vector<const HostCall*>& between) {
  bool issues = false;
  std::string place;
  for (const HostCall* call : between) {
    if (call->kind == HostCall::Kind::synchronize) return wait_of(timeline, *call);
    if (call->kind != HostCall::Kind::launch && call->kind != HostCall::Kind::copy) continue;
    if (!std::exchange(issues, true)) place = place_of(timeline, *call);
  }
  Obstacle cause;
  if (!issues) {
    cause.problem = {.what = "nothing but the next launch", .fix = "capture both as one graph"};
  } else {
    cause.problem = {.what = "the host issues work itself" + (place.empty() ? "" : ", first in " + place),
                     .fix = "capture that work as well"};
  }
  return cause;
}

}  // namespace

std::optional<GraphFragments> find_fragments(const Timeline& timeline, const Analysis& analysis,
                                             const MachineModel& model) {
  const Launches launches = graph_launches_of(timeline, analysis.process);
  std::map<std::string, GraphCut> cuts;
  std::size_t fragments = 0, kernels = 0, gaps = 0;
  Nanoseconds idle = 0;
  for (const Iteration& iteration : analysis.iterations) {
    const std::vector<Fragment> found = fragments_of(timeline, analysis, iteration, launches);
    fragments += found.size();
    for (std::size_t i = 0; i < found.size(); ++i) {
      kernels += found[i].kernels;
      if (i + 1 == found.size()) break;
      const Nanoseconds between = idle_within(analysis, {found[i].time.end, found[i + 1].time.begin});
      const Obstacle cause = cause_of(timeline, calls_between(timeline, found[i], found[i + 1]));
      GraphCut& cut = cuts[cause.problem.what];
      cut.what = cause.problem.what;
      cut.fix = cause.problem.fix;
      cut.per_iteration += 1;
      cut.idle += between;
      idle += between;
      ++gaps;
    }
  }
  if (gaps == 0) return std::nullopt;
  const auto iterations = static_cast<Nanoseconds>(analysis.iterations.size());
  GraphFragments result{.launches = static_cast<double>(fragments) / static_cast<double>(iterations),
                        .kernels = static_cast<double>(kernels) / static_cast<double>(fragments),
                        .cuts = {},
                        .idle = idle / iterations};
  for (auto& [what, cut] : cuts) {
    cut.per_iteration /= static_cast<double>(iterations);
    cut.idle /= iterations;
    result.cuts.push_back(std::move(cut));
  }
  std::stable_sort(result.cuts.begin(), result.cuts.end(),
                   [](const auto& a, const auto& b) { return a.idle > b.idle; });
  const auto nodes = static_cast<Nanoseconds>(gaps) * model.node / iterations;
  result.joined = std::max(analysis.unrecorded - result.idle + nodes, analysis.busy);
  result.speedup =
      static_cast<double>(analysis.unrecorded) / static_cast<double>(std::max<Nanoseconds>(result.joined, 1));
  return result;
}

}  // namespace pianola::profiling
