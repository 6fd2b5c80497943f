#include <pianola/profile/decide/scope_model.hpp>

#include <algorithm>

namespace pianola::profiling {
namespace {

// What is not known better of the host's time.
constexpr double kHostLow = 0.8, kHostHigh = 1.3;

// The host's side of a scope.
struct HostWork {
  Nanoseconds graphs = 0;  // launching them
  Nanoseconds first = 0;   // until the first of them is launched
  Nanoseconds eager = 0;   // issuing what is outside of them
  double eager_launches = 0;
  double graph_launches = 0;
};

// What is left of forward, and as large a share of backward.
struct OutsideLayers {
  double launches;
  Nanoseconds host;
};

OutsideLayers outside_layers(const WorkParts& parts) {
  const PartWork& forward = parts[Part::forward];
  const PartWork& backward = parts[Part::backward];
  const PartWork& inside = parts.layers.work;
  const double outside = 1 - parts.layer_share();
  const auto of_backward = [&](auto amount) { return outside * static_cast<double>(amount); };
  return {.launches = static_cast<double>(forward.launches - std::min(forward.launches, inside.launches)) +
                      of_backward(backward.launches),
          .host = forward.host - std::min(forward.host, inside.host) +
                  static_cast<Nanoseconds>(of_backward(backward.host))};
}

HostWork host_work(GraphScope scope, const WorkParts& parts, const MachineModel& model) {
  const PartWork& optimizer = parts[Part::optimizer];
  // Where nothing names the forward pass, it is what is left: all but a loss of a few launches.
  const PartWork rest = parts[Part::forward].nodes == 0 ? PartWork{} : parts[Part::rest];
  const auto after_model = static_cast<double>(optimizer.launches + rest.launches);
  const auto layers = static_cast<Nanoseconds>(parts.layers.count);
  const OutsideLayers outside = outside_layers(parts);
  switch (scope) {
    case GraphScope::layers:
      return {.graphs = layers * model.callable,
              .first = model.callable / 2,
              .eager = outside.host + optimizer.host + rest.host,
              .eager_launches = outside.launches + after_model,
              .graph_launches = 2 * static_cast<double>(layers)};
    case GraphScope::forward_backward:
      return {.graphs = model.callable,
              .first = model.callable / 2,
              .eager = optimizer.host + rest.host,
              .eager_launches = after_model,
              .graph_launches = 2};
    case GraphScope::without_optimizer:
      return {.graphs = model.graph_launch,
              .first = model.graph_launch,
              .eager = optimizer.host,
              .eager_launches = static_cast<double>(optimizer.launches),
              .graph_launches = 1};
    case GraphScope::iteration:
      break;
  }
  return {.graphs = model.graph_launch, .first = model.graph_launch, .graph_launches = 1};
}

Nanoseconds duration(const IterationCosts& costs, const HostWork& host, Nanoseconds node, double host_factor) {
  const Nanoseconds device = costs.busy + static_cast<Nanoseconds>(costs.nodes) * node;
  const double eager = static_cast<double>(host.eager) * host_factor;
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

IterationCosts costs_of(const Analysis& analysis, const WorkParts& parts, const HostPace& pace) {
  IterationCosts costs{.now = analysis.unrecorded,
                       .busy = analysis.busy,
                       .pauses = pace.pauses,
                       .waits = analysis.synchronizations >= 0.5};
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
