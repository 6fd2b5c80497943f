#include <pianola/profile/analyse/iteration_figures.hpp>

#include <algorithm>
#include <cstdint>
#include <set>

namespace pianola::profiling {
namespace {

std::optional<std::size_t> at_host_time(const std::vector<Iteration>& iterations, Nanoseconds time) {
  const auto next = std::ranges::upper_bound(iterations, time, {}, [](const Iteration& i) { return i.host.begin; });
  if (next == iterations.begin() || !(next - 1)->host.contains(time)) return std::nullopt;
  return static_cast<std::size_t>(next - 1 - iterations.begin());
}

std::optional<std::size_t> with_work(const std::vector<Iteration>& iterations, std::size_t position) {
  const auto next = std::ranges::upper_bound(iterations, position, {}, &Iteration::first_work);
  if (next == iterations.begin() || position >= (next - 1)->last_work) return std::nullopt;
  return static_cast<std::size_t>(next - 1 - iterations.begin());
}

void add_work(const DeviceWorkList& list, const Issued& issued, Iteration& iteration) {
  std::set<std::uint64_t> unrecorded;  // launches of graphs, by correlation
  for (std::size_t i = iteration.first_work; i < iteration.last_work; ++i) {
    if (is_kernel(list[i])) ++iteration.kernels;
    if (list[i].graph != 0 && issued.call_of(i) == Issued::kNone) unrecorded.insert(list[i].correlation);
  }
  iteration.launches += unrecorded.size();
  iteration.graph_launches += unrecorded.size();
}

void add_gaps(const std::vector<Gap>& gaps, std::vector<Iteration>& iterations) {
  for (const Gap& gap : gaps) {
    const auto next =
        std::ranges::upper_bound(iterations, gap.time.begin, {}, [](const Iteration& i) { return i.time.begin; });
    Iteration& iteration = *(next - 1);
    iteration.idle[static_cast<std::size_t>(gap.cause)] += gap.time.duration();
    if (gap.cause != GapCause::copy) iteration.busy -= gap.time.duration();
  }
}

void add_call(const HostCall& call, bool has_work, Iteration& iteration) {
  const bool waits = call.kind == HostCall::Kind::synchronize;
  if (waits) ++iteration.synchronizations;
  if (call.kind == HostCall::Kind::other || (waits && !has_work)) return;
  ++iteration.launches;
  if (call.kind == HostCall::Kind::graph_launch) ++iteration.graph_launches;
  if (!waits) iteration.in_launches += call.time.duration();
}

}  // namespace

std::optional<std::size_t> iteration_of_call(const DeviceWorkList& list, const Issued& issued,
                                             const std::vector<Iteration>& iterations, std::size_t call) {
  if (list.timeline->calls[call].process != list.process) return std::nullopt;
  const std::uint32_t first = issued.first_work_of(call);
  if (first == Issued::kElsewhere || first == Issued::kInner) return std::nullopt;
  return first == Issued::kNone ? at_host_time(iterations, list.timeline->calls[call].time.begin)
                                : with_work(iterations, first);
}

std::vector<Iteration> iteration_figures(const DeviceWorkList& list, const Issued& issued, const FoundIterations& found,
                                         const std::vector<Gap>& gaps) {
  std::vector<Iteration> iterations(found.count());
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const Boundary& begin = found.boundaries[i];
    const Boundary& end = found.boundaries[i + 1];
    Iteration& iteration = iterations[i];
    iteration.time = {begin.device, end.device};
    iteration.host = {begin.host, end.host};
    iteration.first_work = position_at(list, begin.device);
    iteration.last_work = position_at(list, end.device);
    iteration.busy = iteration.time.duration();
    add_work(list, issued, iteration);
  }
  add_gaps(gaps, iterations);
  for (std::size_t call = 0; call < list.timeline->calls.size(); ++call) {
    const auto iteration = iteration_of_call(list, issued, iterations, call);
    if (!iteration) continue;
    add_call(list.timeline->calls[call], issued.first_work_of(call) != Issued::kNone, iterations[*iteration]);
  }
  return iterations;
}

}  // namespace pianola::profiling
