#include <pianola/profile/scope_model.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace pianola::profiling {
namespace {

// Fewer intervals between launches say little.
constexpr std::size_t kFewIntervals = 8;
// A longer interval than so many medians is a pause.
constexpr Nanoseconds kLongest = 5;
// What is not known better of the host's time.
constexpr double kHostLow = 0.8, kHostHigh = 1.3;

bool is_launch(const HostCall& call) {
  return call.kind == HostCall::Kind::launch || call.kind == HostCall::Kind::copy;
}

// Between two launches that follow each other, of whichever thread, or from a wait for the device to the next launch.
struct Interval {
  Nanoseconds whole;    // from begin to begin
  Nanoseconds outside;  // of that, outside the first call: a launch takes long where its queue is full
};

std::vector<Interval> intervals_between_launches(const Timeline& timeline, std::int32_t process, TimeSpan within) {
  std::vector<Interval> intervals;
  std::optional<TimeSpan> last;
  for (const HostCall& call : timeline.calls) {
    // Up to the launch with which the next iteration begins.
    if (call.process != process || call.time.begin < within.begin || call.time.begin > within.end) continue;
    if (call.kind == HostCall::Kind::synchronize) last = {call.time.end, call.time.end};
    if (!is_launch(call)) continue;
    if (last) intervals.push_back({call.time.begin - last->begin, call.time.begin - last->end});
    last = call.time;
  }
  return intervals;
}

struct HostPace {
  Nanoseconds per_launch = 0;
  Nanoseconds pauses = 0;
};

HostPace pace_of(std::vector<Interval> intervals, const MachineModel& model) {
  if (intervals.size() < kFewIntervals) return {.per_launch = model.launch};
  const auto middle = intervals.begin() + static_cast<std::ptrdiff_t>(intervals.size() / 2);
  std::nth_element(intervals.begin(), middle, intervals.end(),
                   [](const Interval& one, const Interval& other) { return one.whole < other.whole; });
  const Nanoseconds usual = middle->whole;
  HostPace pace;
  Nanoseconds sum = 0, counted = 0;
  for (const Interval& interval : intervals) {
    if (interval.whole <= kLongest * usual) {
      sum += interval.whole;
      ++counted;
    } else {
      pace.pauses += std::max<Nanoseconds>(interval.outside - usual, 0);
    }
  }
  pace.per_launch = sum / counted;
  return pace;
}

// The host's side of a scope.
struct HostWork {
  Nanoseconds graphs = 0;  // launching them
  Nanoseconds first = 0;   // until the first of them is launched
  double eager_launches = 0;
  double graph_launches = 0;
};

double share(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Forward launches outside layers, and as large a share of the backward ones.
double launches_outside_layers(const WorkParts& parts) {
  const PartWork& forward = parts[Part::forward];
  const double outside = 1 - std::min(1.0, share(parts.layers.work.busy, forward.busy));
  return static_cast<double>(forward.launches - std::min(forward.launches, parts.layers.work.launches)) +
         outside * static_cast<double>(parts[Part::backward].launches);
}

HostWork host_work(GraphScope scope, const WorkParts& parts, const MachineModel& model) {
  const auto optimizer = static_cast<double>(parts[Part::optimizer].launches);
  const auto rest = static_cast<double>(parts[Part::rest].launches);
  const auto layers = static_cast<double>(parts.layers.count);
  switch (scope) {
    case GraphScope::layers:
      return {.graphs = static_cast<Nanoseconds>(layers) * model.callable,
              .first = model.callable / 2,
              .eager_launches = launches_outside_layers(parts) + optimizer + rest,
              .graph_launches = 2 * layers};
    case GraphScope::forward_backward:
      return {.graphs = model.callable,
              .first = model.callable / 2,
              .eager_launches = optimizer + rest,
              .graph_launches = 2};
    case GraphScope::without_optimizer:
      return {
          .graphs = model.graph_launch, .first = model.graph_launch, .eager_launches = optimizer, .graph_launches = 1};
    case GraphScope::iteration:
      break;
  }
  return {.graphs = model.graph_launch, .first = model.graph_launch, .eager_launches = 0, .graph_launches = 1};
}

Nanoseconds duration(const IterationCosts& costs, const HostWork& host, Nanoseconds node, double host_factor) {
  const Nanoseconds device = costs.busy + static_cast<Nanoseconds>(costs.nodes) * node;
  const double eager = host.eager_launches * static_cast<double>(costs.per_launch) * host_factor;
  const Nanoseconds issuing = host.graphs + static_cast<Nanoseconds>(eager) + costs.pauses;
  return costs.waits ? std::max(device + host.first + costs.pauses, issuing) : std::max(device, issuing);
}

std::string missing(GraphScope scope, const WorkParts& parts) {
  if (scope == GraphScope::layers && parts.layers.count == 0) {
    return "the profile names no layers: record modules (torch.profiler.profile(with_modules=True, with_stack=True)), "
           "or "
           "annotate them";
  }
  if (scope == GraphScope::forward_backward && !parts.knows_parts) {
    return "the profile does not tell forward and backward from the rest: record operations as well";
  }
  if (scope == GraphScope::without_optimizer && parts[Part::optimizer].nodes == 0) {
    return "the profile shows no optimizer: an iteration without it is the whole one";
  }
  return "";
}

}  // namespace

IterationCosts costs_of(const Timeline& timeline, const Analysis& analysis, const WorkParts& parts,
                        const MachineModel& model) {
  const Iteration& typical = typical_iteration(analysis);
  const HostPace pace = pace_of(intervals_between_launches(timeline, analysis.process, typical.host), model);
  IterationCosts costs{.now = analysis.duration,
                       .busy = analysis.busy,
                       .pauses = pace.pauses,
                       .waits = analysis.synchronizations >= 0.5,
                       .per_launch = pace.per_launch};
  for (const PartWork& part : parts.parts) costs.nodes += part.nodes;
  return costs;
}

std::array<ScopePrediction, kGraphScopes> predict(const IterationCosts& costs, const WorkParts& parts,
                                                  const MachineModel& model) {
  std::array<ScopePrediction, kGraphScopes> predictions;
  for (std::size_t i = 0; i < kGraphScopes; ++i) {
    ScopePrediction& prediction = predictions[i];
    prediction.scope = static_cast<GraphScope>(i);
    prediction.obstacle = missing(prediction.scope, parts);
    if (!prediction.obstacle.empty()) continue;
    const HostWork host = host_work(prediction.scope, parts, model);
    prediction.low = duration(costs, host, model.node_low, kHostLow);
    prediction.expected = duration(costs, host, model.node, 1);
    prediction.high = duration(costs, host, model.node_high, kHostHigh);
    prediction.speedup =
        static_cast<double>(costs.now) / static_cast<double>(std::max<Nanoseconds>(prediction.expected, 1));
    prediction.host_launches = host.graph_launches + host.eager_launches;
  }
  return predictions;
}

}  // namespace pianola::profiling
