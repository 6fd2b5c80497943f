#include <pianola/profile/decide/work_parts.hpp>

#include <pianola/profile/analyse/enclosing_ranges.hpp>
#include <pianola/profile/analyse/issue_sequence.hpp>
#include <pianola/profile/decide/range_parts.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

// A launch call of the iteration, and the work that it issued.
struct Launch {
  const HostCall* call = nullptr;
  std::vector<const DeviceWork*> work;
  Nanoseconds host = 0;
};

Nanoseconds time_to_issue(const HostCall& call, const HostPace& pace) {
  const auto found = pace.before.find(&call);
  return found == pace.before.end() ? pace.per_launch : found->second;
}

std::vector<Launch> launches_of(const Timeline& timeline, const Analysis& analysis, const HostPace& pace) {
  const Iteration& iteration = typical_iteration(analysis);
  std::unordered_map<std::uint64_t, std::vector<const DeviceWork*>> by_correlation;
  for (std::size_t i = iteration.first_work; i < iteration.last_work; ++i) {
    const DeviceWork& work = timeline.work[analysis.order[i]];
    by_correlation[work.correlation].push_back(&work);
  }
  std::vector<Launch> launches;
  for (const HostCall& call : timeline.calls) {
    if (call.process != analysis.process || call.correlation == 0) continue;
    const auto found = by_correlation.find(call.correlation);
    if (found == by_correlation.end()) continue;
    launches.push_back({&call, std::move(found->second), time_to_issue(call, pace)});
    by_correlation.erase(found);
  }
  for (auto& [correlation, work] : by_correlation) {
    for (const DeviceWork* one : work) launches.push_back({nullptr, {one}, 0});  // whose call is not in the profile
  }
  return launches;
}

Part part_by_name(const Timeline& timeline, const Launch& launch) {
  const bool optimizers = std::any_of(launch.work.begin(), launch.work.end(), [&](const DeviceWork* work) {
    return is_optimizers_kernel(timeline.name(work->name));
  });
  return optimizers ? Part::optimizer : Part::rest;
}

bool launches_kernel(const Launch& launch) {
  return std::any_of(launch.work.begin(), launch.work.end(), [](const DeviceWork* work) {
    return work->kind == DeviceWork::Kind::kernel || work->kind == DeviceWork::Kind::operation;
  });
}

void add(const Launch& launch, PartWork& part) {
  for (const DeviceWork* work : launch.work) part.busy += work->time.duration();
  part.nodes += launch.work.size();
  if (launch.call == nullptr) return;
  ++part.launches;
  part.host += launch.host;
  if (!launches_kernel(launch)) return;
  const TimeSpan& time = launch.call->time;
  const bool first = part.issued.duration() == 0;
  part.issued = first ? time : TimeSpan{std::min(part.issued.begin, time.begin), std::max(part.issued.end, time.end)};
}

// Counts, for each kind of module, what was issued inside its instances.
class LayerCount {
 public:
  explicit LayerCount(const Timeline& timeline) : timeline_(timeline) {}

  void add_launch(const Launch& launch, std::span<const HostRange* const> open) {
    std::set<std::string_view> seen;  // a module inside one of its own kind counts once
    for (const HostRange* range : open) {
      const std::string_view kind = kind_of_module(timeline_, *range);
      if (kind.empty() || !seen.insert(kind).second) continue;
      Kind& entry = kinds_[kind];
      entry.instances.insert(range);
      add(launch, entry.work);
    }
  }

  // The kind with several instances that covers most; of two that cover the same, that of the fewer, larger ones.
  [[nodiscard]] Layers best() const {
    Layers layers;
    for (const auto& [kind, entry] : kinds_) {
      const std::size_t count = entry.instances.size();
      if (count < 2) continue;
      const bool better = entry.work.busy > layers.work.busy ||
                          (entry.work.busy == layers.work.busy && (layers.count == 0 || count < layers.count));
      if (better) layers = {.kind = std::string(kind), .count = count, .work = entry.work};
    }
    return layers;
  }

 private:
  struct Kind {
    std::set<const HostRange*> instances;
    PartWork work;
  };
  const Timeline& timeline_;
  std::map<std::string_view, Kind> kinds_;
};

}  // namespace

double WorkParts::layer_share() const {
  const PartWork& forward = (*this)[Part::forward];
  if (forward.busy == 0) return 0;
  return std::min(1.0, static_cast<double>(layers.work.busy) / static_cast<double>(forward.busy));
}

WorkParts take_apart(const Timeline& timeline, const Analysis& analysis, const HostPace& pace) {
  const std::vector<Launch> launches = launches_of(timeline, analysis, pace);
  std::map<std::int64_t, std::vector<Moment>> by_thread;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].call != nullptr) by_thread[launches[i].call->thread].push_back({launches[i].call->time.begin, i});
  }
  WorkParts result;
  LayerCount layers(timeline);
  std::vector<std::optional<Part>> parts(launches.size());
  for (const auto& [thread, moments] : by_thread) {
    visit_enclosing(timeline, analysis.process, thread, moments,
                    [&](std::size_t i, std::span<const HostRange* const> open) {
                      parts[i] = part_by_ranges(timeline, open);
                      if (parts[i] == Part::forward) layers.add_launch(launches[i], open);
                      result.knows_parts |= parts[i] == Part::forward || parts[i] == Part::backward;
                    });
  }
  for (std::size_t i = 0; i < launches.size(); ++i) {
    add(launches[i], result[parts[i] ? *parts[i] : part_by_name(timeline, launches[i])]);
  }
  result.layers = layers.best();
  return result;
}

}  // namespace pianola::profiling
