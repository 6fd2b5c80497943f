#include <pianola/profile/decide/decision.hpp>

#include <pianola/core/report_format.hpp>
#include <pianola/profile/analyse/host_pace.hpp>
#include <pianola/profile/analyse/memory_use.hpp>
#include <pianola/profile/decide/fragments.hpp>
#include <pianola/profile/decide/obstacles.hpp>
#include <pianola/profile/decide/scope_memory.hpp>
#include <pianola/profile/decide/scope_model.hpp>
#include <pianola/profile/decide/work_parts.hpp>
#include <pianola/profile/quantities.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace pianola {
namespace {

using profiling::counted_text;
using profiling::duration_text;
using profiling::Obstacle;
using profiling::percent_text;
using profiling::WorkParts;

// Thresholds; see decide().
constexpr double kIdleDevice = 0.80, kBusyDevice = 0.95;
constexpr double kWorthIt = 1.15, kLittle = 1.05;
// Work that graphs do already.
constexpr double kMostlyGraphed = 0.8;
// Calls that a graph has to save: one that replaces less saves nothing that can be told.
constexpr double kFewCalls = 4;
// A larger scope has to gain that much over a smaller one: it asks for more of the program.
constexpr double kClearlyFaster = 1.03;

struct Calls {
  const char* cpp;
  const char* python;
};

Calls calls_for(GraphScope scope) {
  switch (scope) {
    case GraphScope::layers:
      return {"for (auto& layer : layers) graphed.push_back(pianola::make_graphed_callable(layer, {sample}));",
              "layers = pianola.make_graphed_callables(tuple(model.layers), tuple((sample,) for _ in model.layers))"};
    case GraphScope::forward_backward:
      return {"auto graphed = pianola::make_graphed_callable(model, {sample});",
              "model = pianola.make_graphed_callables(model, (sample,))"};
    case GraphScope::without_optimizer:
      return {"pianola::FullIteration step(forward_and_backward);  // step(microbatches), then optimizer.step()",
              "step = pianola.FullIteration(forward_and_backward)  # step(microbatches), then optimizer.step()"};
    case GraphScope::iteration:
      break;
  }
  return {"pianola::FullIteration step(train_step);  // step(microbatches), optimizer of pianola inside",
          "step = pianola.FullIteration(train_step)  # step(microbatches), optimizer of pianola.optim inside"};
}

double graphed_share(const Timeline& timeline, const Analysis& analysis) {
  std::size_t all = 0, graphed = 0;
  for (const Iteration& iteration : analysis.iterations) {
    for (std::size_t i = iteration.first_work; i < iteration.last_work; ++i) {
      const DeviceWork& work = timeline.work[analysis.order[i]];
      if (work.kind != DeviceWork::Kind::kernel) continue;
      ++all;
      if (work.graph != 0) ++graphed;
    }
  }
  return all == 0 ? 0 : static_cast<double>(graphed) / static_cast<double>(all);
}

// The verdict where nothing needs to be predicted.
std::optional<Decision> settled(const Timeline& timeline, const Analysis& analysis) {
  if (analysis.device < 0) {
    return Decision{
        .verdict = GraphVerdict::unknown,
        .headline = fmt::format("There is no GPU work in this profile: operations of the CPU take {} of the "
                                "time, the rest passes between them. Profile on a GPU to decide.",
                                percent_text(analysis.utilisation))};
  }
  if (analysis.by == IterationsBy::nothing) {
    return Decision{
        .verdict = GraphVerdict::unknown,
        .headline = fmt::format("No verdict: {}.", analysis.problem),
        .reasons = {fmt::format("The device is busy {} of the profile's time.", percent_text(analysis.utilisation))}};
  }
  if (analysis.launches == 0 && analysis.utilisation <= kBusyDevice) {
    return Decision{
        .verdict = GraphVerdict::unknown,
        .headline = fmt::format("No verdict: the profile has {} per iteration and none of the calls that launch "
                                "them. Record the host's calls of CUDA as well.",
                                counted_text(analysis.kernels, "kernel", "kernels"))};
  }
  const double graphed = graphed_share(timeline, analysis);
  if (graphed < kMostlyGraphed) return std::nullopt;
  return Decision{
      .verdict = GraphVerdict::graphed,
      .headline = fmt::format("Graphs do the work already: {} of the kernels, in {} per iteration.",
                              percent_text(graphed), counted_text(analysis.graph_launches, "launch", "launches")),
      .reasons = {fmt::format("An iteration takes {}, and keeps the device busy {} of that.",
                              duration_text(analysis.unrecorded), percent_text(analysis.utilisation))}};
}

void mark_blocked(const std::vector<Obstacle>& obstacles, Decision& decision) {
  for (const Obstacle& obstacle : obstacles) {
    decision.obstacles.push_back(fmt::format("{}: {}", obstacle.problem.what, obstacle.problem.fix));
    for (ScopePrediction& scope : decision.scopes) {
      if (scope.obstacle.empty() && obstacle.blocks[static_cast<std::size_t>(scope.scope)])
        scope.obstacle = obstacle.problem.what;
    }
  }
}

void add_memory(const Timeline& timeline, const Analysis& analysis, const WorkParts& parts, Decision& decision) {
  const auto memory = profiling::scope_memory(timeline, analysis, parts, decision.model);
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    if (decision.scopes[i].expected != 0) decision.scopes[i].memory = memory[i];
  }
}

// For all that the profile says.
bool finds_room(const ScopePrediction& scope) { return scope.memory.would_fit.value_or(true); }

std::uint64_t taken_by(const ScopePrediction& scope) {
  return scope.memory.pool.value_or(0) + scope.memory.executables;
}

// The largest that finds room; nothing: none does.
const ScopePrediction* largest_that_fits(const std::vector<ScopePrediction>& scopes) {
  const auto found = std::find_if(scopes.rbegin(), scopes.rend(), [](const ScopePrediction& scope) {
    return scope.expected != 0 && finds_room(scope);
  });
  return found == scopes.rend() ? nullptr : &*found;
}

std::string way_to_fit(const ScopeMemory& memory, const ScopePrediction* other) {
  const std::string planned = memory.planned ? fmt::format("Set plan_memory: its pool takes {} then. Or take",
                                                           format_bytes(static_cast<double>(*memory.planned)))
                                             : "Take";
  return fmt::format("{} {}, or smaller batches.", planned,
                     other != nullptr ? in_words(other->scope) : "a smaller part of the iteration");
}

void mark_too_large(Decision& decision) {
  const ScopePrediction* const other = largest_that_fits(decision.scopes);
  for (ScopePrediction& scope : decision.scopes) {
    if (finds_room(scope)) continue;
    scope.obstacle = "it does not fit into the memory that is left";
    decision.obstacles.push_back(
        fmt::format("{}: {} {}", in_words(scope.scope), scope.memory.verdict, way_to_fit(scope.memory, other)));
  }
}

// The smallest of those that are nearly as fast as the fastest. What stands in a scope's way is to be removed, and does not rule the
// scope out, but for memory. Where none finds room, the one that takes least.
std::size_t best_of(const std::vector<ScopePrediction>& scopes) {
  Nanoseconds fastest = 0;
  const ScopePrediction* least = &scopes.back();  // the whole iteration, which can always be told
  for (const ScopePrediction& scope : scopes) {
    if (scope.expected == 0) continue;
    if (taken_by(scope) < taken_by(*least)) least = &scope;
    if (finds_room(scope) && (fastest == 0 || scope.expected < fastest)) fastest = scope.expected;
  }
  const auto enough = static_cast<Nanoseconds>(kClearlyFaster * static_cast<double>(fastest));
  const auto best = std::find_if(scopes.begin(), scopes.end(), [&](const ScopePrediction& scope) {
    return scope.expected != 0 && finds_room(scope) && scope.expected <= enough;
  });
  return static_cast<std::size_t>((best == scopes.end() ? least : &*best) - scopes.data());
}

bool saves_few_calls(const Analysis& analysis, const ScopePrediction& best) {
  return analysis.launches - best.host_launches < kFewCalls;
}

GraphVerdict judge(const Analysis& analysis, const ScopePrediction& best) {
  if (analysis.utilisation > kBusyDevice || best.speedup < kLittle || saves_few_calls(analysis, best) ||
      !finds_room(best)) {
    return GraphVerdict::leave;
  }
  return best.speedup >= kWorthIt ? GraphVerdict::graph : GraphVerdict::small_gain;
}

// The largest cause of idle time.
GapCause main_cause(const Analysis& analysis) {
  const auto largest = std::max_element(analysis.idle.begin(), analysis.idle.end());
  return static_cast<GapCause>(largest - analysis.idle.begin());
}

const char* in_a_sentence(GapCause cause) {
  switch (cause) {
    case GapCause::launch:
      return "the host, which issues work too slowly";
    case GapCause::synchronization:
      return "the host, which waits for the device";
    case GapCause::data:
      return "the loading of data";
    case GapCause::copy:
      return "copies between host and device";
    case GapCause::device:
      break;
  }
  return "the latency between kernels";
}

std::string headline(const Analysis& analysis, const Decision& decision) {
  const ScopePrediction& best = decision.scopes[decision.best];
  const std::string gain = fmt::format("{:.2f} times as fast, {} ({} to {}) instead of {} per iteration", best.speedup,
                                       duration_text(best.expected), duration_text(best.low), duration_text(best.high),
                                       duration_text(analysis.unrecorded));
  switch (decision.verdict) {
    case GraphVerdict::graph:
      return fmt::format("Graph it, {}: {}{}.", in_words(best.scope), gain,
                         best.obstacle.empty() ? "" : ", once nothing stands in its way");
    case GraphVerdict::small_gain:
      return fmt::format("A graph gains little ({}): {}.", in_words(best.scope), gain);
    default:
      break;
  }
  if (analysis.utilisation > kBusyDevice) {
    return fmt::format("Leave it: the device is busy {} of the time, so launches do not keep it waiting.",
                       percent_text(analysis.utilisation));
  }
  if (!finds_room(best)) {
    const bool would_if_planned =
        std::any_of(decision.scopes.begin(), decision.scopes.end(),
                    [](const ScopePrediction& one) { return one.memory.planned.has_value(); });
    return fmt::format("Leave it: no graph fits into the memory that is left{}; {} takes least.",
                       would_if_planned ? ", unless plan_memory is set" : "", in_words(best.scope));
  }
  if (saves_few_calls(analysis, best)) {
    return fmt::format("Leave it: an iteration issues {}, and launching a graph is a call, too.",
                       counted_text(analysis.launches, "call", "calls"));
  }
  return fmt::format("Leave it: a graph does not change why the device waits: {}.",
                     in_a_sentence(main_cause(analysis)));
}

bool slowed_by_recording(const Analysis& analysis) {
  return static_cast<double>(analysis.duration) > kLittle * static_cast<double>(analysis.unrecorded);
}

std::vector<std::string> reasons(const Analysis& analysis, const profiling::HostPace& pace) {
  std::vector<std::string> reasons;
  reasons.push_back(
      fmt::format("The device is busy {} of an iteration of {} (below {} is a candidate, above {} is not).",
                  percent_text(analysis.utilisation), duration_text(analysis.unrecorded), percent_text(kIdleDevice),
                  percent_text(kBusyDevice)));
  if (slowed_by_recording(analysis)) {
    reasons.push_back(
        fmt::format("While it was recorded it took {}: a profiler slows the host. Idle times are those of "
                    "the recording.",
                    duration_text(analysis.duration)));
  }
  reasons.push_back(fmt::format("It runs {} per iteration, {} of them shorter than 50 us, issued by {}.",
                                counted_text(analysis.kernels, "kernel", "kernels"),
                                percent_text(analysis.durations.share_small),
                                counted_text(analysis.launches, "call", "calls")));
  Nanoseconds idle = 0;  // on average, as its causes
  for (std::size_t i = 0; i < kGapCauses; ++i) {
    if (static_cast<GapCause>(i) != GapCause::copy) idle += analysis.idle[i];
  }
  if (idle > 0) {
    const GapCause cause = main_cause(analysis);
    reasons.push_back(fmt::format("Of the {} that it is idle, {} are due to {}.", duration_text(idle),
                                  duration_text(analysis.idle[static_cast<std::size_t>(cause)]), in_a_sentence(cause)));
  }
  reasons.push_back(
      fmt::format("The host takes {} for each operation that it issues.", duration_text(pace.per_launch)));
  return reasons;
}

// Whether a graph helps, and the scopes.
Decision reckon(const Timeline& timeline, const Analysis& analysis, const MachineModel& model) {
  if (std::optional<Decision> decision = settled(timeline, analysis)) {
    decision->model = model;
    return *std::move(decision);
  }
  profiling::HostPace pace = profiling::host_pace(timeline, analysis);
  if (pace.per_launch == 0) pace.per_launch = model.launch;
  const WorkParts parts = profiling::take_apart(timeline, analysis, pace);
  const profiling::IterationCosts costs = profiling::costs_of(analysis, parts, pace);
  Decision decision;
  decision.model = model;
  decision.model.launch = pace.per_launch;
  for (ScopePrediction& scope : profiling::predict(costs, parts, model)) {
    const Calls calls = calls_for(scope.scope);
    scope.cpp = calls.cpp;
    scope.python = calls.python;
    decision.scopes.push_back(std::move(scope));
  }
  add_memory(timeline, analysis, parts, decision);
  mark_too_large(decision);
  mark_blocked(profiling::find_obstacles(timeline, analysis, parts), decision);
  decision.best = best_of(decision.scopes);
  decision.verdict = judge(analysis, decision.scopes[decision.best]);
  decision.headline = headline(analysis, decision);
  decision.reasons = reasons(analysis, pace);
  return decision;
}

std::string in_words(const GraphFragments& fragments) {
  return fmt::format("{} per iteration, of {} each", counted_text(fragments.launches, "graph", "graphs"),
                     counted_text(fragments.kernels, "kernel", "kernels"));
}

// Where graphs do the work already, what is left is to join them; else the scopes tell what one graph is worth.
void add_fragments(const Timeline& timeline, const Analysis& analysis, Decision& decision) {
  if (analysis.device < 0 || analysis.by == IterationsBy::nothing) return;
  decision.fragments = profiling::find_fragments(timeline, analysis, decision.model);
  if (!decision.fragments) return;
  const GraphFragments& fragments = *decision.fragments;
  decision.reasons.push_back(fmt::format("There are {}; between them the device is idle {} of {}.", in_words(fragments),
                                         duration_text(fragments.idle), duration_text(analysis.unrecorded)));
  if (decision.verdict != GraphVerdict::graphed || fragments.speedup < kLittle) return;
  decision.verdict = GraphVerdict::fragmented;
  decision.headline = fmt::format("Join its graphs: {:.2f} times as fast, {} instead of {} per iteration. It has {}.",
                                  fragments.speedup, duration_text(fragments.joined),
                                  duration_text(analysis.unrecorded), in_words(fragments));
  for (const GraphCut& cut : fragments.cuts) decision.obstacles.push_back(fmt::format("{}: {}", cut.what, cut.fix));
}

}  // namespace

const char* in_words(GraphScope scope) noexcept {
  switch (scope) {
    case GraphScope::layers:
      return "each layer";
    case GraphScope::forward_backward:
      return "forward and backward";
    case GraphScope::without_optimizer:
      return "iteration without optimizer";
    case GraphScope::iteration:
      break;
  }
  return "whole iteration";
}

const char* fit_in_words(const ScopeMemory& memory) noexcept {
  if (!memory.fits) return "";
  return *memory.fits ? "yes" : memory.would_fit.value_or(false) ? "not yet" : "no";
}

const char* in_words(GraphVerdict verdict) noexcept {
  switch (verdict) {
    case GraphVerdict::graph:
      return "graph";
    case GraphVerdict::small_gain:
      return "small gain";
    case GraphVerdict::leave:
      return "leave";
    case GraphVerdict::graphed:
      return "graphed already";
    case GraphVerdict::fragmented:
      return "join the graphs";
    case GraphVerdict::unknown:
      break;
  }
  return "unknown";
}

Decision decide(const Timeline& timeline, const Analysis& analysis, const MachineModel& model) {
  Decision decision = reckon(timeline, analysis, model);
  add_fragments(timeline, analysis, decision);
  if (!analysis.memory) {
    decision.memory_unknown = profiling::kMemoryUnknown;
  } else if (!analysis.memory->left && !decision.scopes.empty()) {
    decision.memory_unknown = profiling::kRoomUnknown;
  }
  return decision;
}

}  // namespace pianola
