#include <pianola/profile/decide/obstacles.hpp>

#include <pianola/profile/analyse/enclosing_ranges.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pianola::profiling {
namespace {

// More iterations that differ are no exceptions: logging, say.
constexpr double kManyDiffer = 0.1;

TimeSpan joined(const TimeSpan& one, const TimeSpan& other) {
  if (one.duration() == 0) return other;
  if (other.duration() == 0) return one;
  return {std::min(one.begin, other.begin), std::max(one.end, other.end)};
}

// A call before the first launch or after the last one of what is captured stays outside.
bool interrupts(const HostCall& call, const TimeSpan& issued) {
  return issued.begin < call.time.begin && call.time.end < issued.end;
}

struct IssuedSpans {
  explicit IssuedSpans(const WorkParts& parts)
      : forward(parts[Part::forward].issued),
        backward(parts[Part::backward].issued),
        without_optimizer(joined(joined(forward, backward), parts[Part::rest].issued)),
        whole(joined(without_optimizer, parts[Part::optimizer].issued)) {}
  TimeSpan forward, backward, without_optimizer, whole;
};

std::string fix_for(const std::string& call, const std::string& place) {
  if (place.find("aten::item") != std::string::npos || place.find("_local_scalar_dense") != std::string::npos) {
    return "keep the value on the device, or read it after the iteration (pianola.audit names the line)";
  }
  if (place.find("aten::nonzero") != std::string::npos || place.find("aten::masked_select") != std::string::npos ||
      place.find("aten::index") != std::string::npos) {
    return "its result's size depends on values: use masks of fixed size (torch.where)";
  }
  if (place.find("aten::copy_") != std::string::npos || place.find("aten::_to_copy") != std::string::npos ||
      call.find("emcpy") != std::string::npos) {
    return "copy from pinned memory with non_blocking=True, or let StaticInputs load batches";
  }
  return "let the host not wait inside the iteration (pianola.audit names the line)";
}

void add_waits(const Timeline& timeline, const Analysis& analysis, const WorkParts& parts,
               std::vector<Obstacle>& obstacles) {
  const IssuedSpans issued(parts);
  std::map<std::string, Obstacle> by_wait;
  for (const HostCall& call : timeline.calls) {
    if (call.kind != HostCall::Kind::synchronize || call.process != analysis.process) continue;
    if (!interrupts(call, issued.whole)) continue;
    Obstacle wait = wait_of(timeline, call);
    Obstacle& obstacle = by_wait[wait.problem.what];
    if (obstacle.problem.what.empty()) {
      obstacle.problem = {.what = wait.problem.what + " in the middle of the iteration",
                          .fix = std::move(wait.problem.fix)};
    }
    const bool inside_model = interrupts(call, issued.forward) || interrupts(call, issued.backward);
    obstacle.blocks[static_cast<std::size_t>(GraphScope::layers)] |= inside_model;
    obstacle.blocks[static_cast<std::size_t>(GraphScope::forward_backward)] |= inside_model;
    obstacle.blocks[static_cast<std::size_t>(GraphScope::without_optimizer)] |=
        interrupts(call, issued.without_optimizer);
    obstacle.blocks[static_cast<std::size_t>(GraphScope::iteration)] = true;
  }
  for (auto& [key, obstacle] : by_wait) obstacles.push_back(std::move(obstacle));
}

void add_changes(const Analysis& analysis, std::vector<Obstacle>& obstacles) {
  std::map<std::size_t, std::size_t> counts;
  for (const Iteration& iteration : analysis.iterations) ++counts[iteration.kernels];
  std::size_t usual = 0;
  for (const auto& [kernels, iterations] : counts) usual = std::max(usual, iterations);
  const double differ = 1 - static_cast<double>(usual) / static_cast<double>(analysis.iterations.size());
  if (analysis.iterations.size() < 3 || differ <= kManyDiffer) return;
  Obstacle obstacle{
      .problem = {
          .what = fmt::format("the work differs from iteration to iteration: {} to {} kernels", counts.begin()->first,
                              counts.rbegin()->first),
          .fix = "pad batches to a few sizes, each with its own graph (Buckets), and take decisions that depend on "
                 "data out of the iteration"}};
  obstacle.blocks.fill(true);
  obstacles.push_back(std::move(obstacle));
}

}  // namespace

std::string place_of(const Timeline& timeline, const HostCall& call) {
  std::string operation, annotation;
  const Moment moment{.time = call.time.begin, .tag = 0};
  visit_enclosing(timeline, call.process, call.thread, {&moment, 1},
                  [&](std::size_t /*tag*/, std::span<const HostRange* const> open) {
                    for (const HostRange* range : open) {
                      if (range->kind == HostRange::Kind::operation) operation = timeline.name(range->name);
                      if (range->kind == HostRange::Kind::annotation) annotation = timeline.name(range->name);
                    }
                  });
  if (annotation.empty()) return operation;
  return operation.empty() ? fmt::format("in '{}'", annotation) : fmt::format("{}, in '{}'", operation, annotation);
}

Obstacle wait_of(const Timeline& timeline, const HostCall& call) {
  const std::string place = place_of(timeline, call);
  const std::string& name = timeline.name(call.name);
  return {.problem = {.what = place.empty() ? fmt::format("the host waits in {}", name)
                                            : fmt::format("the host waits in {} ({})", name, place),
                      .fix = fix_for(name, place)}};
}

std::vector<Obstacle> find_obstacles(const Timeline& timeline, const Analysis& analysis, const WorkParts& parts) {
  std::vector<Obstacle> obstacles;
  add_waits(timeline, analysis, parts, obstacles);
  add_changes(analysis, obstacles);
  return obstacles;
}

}  // namespace pianola::profiling
