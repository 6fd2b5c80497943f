#include <pianola/profile/analyse/host_threads.hpp>

#include <pianola/profile/analyse/iteration_figures.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

// Idle time by what ended it: positions, and calls that waited.
struct IdleTimes {
  std::unordered_map<std::size_t, Nanoseconds> before_work;
  std::unordered_map<std::size_t, Nanoseconds> by_wait;
};

IdleTimes idle_times(const DeviceWorkList& list, const std::vector<Gap>& gaps) {
  IdleTimes idle;
  for (const Gap& gap : gaps) {
    if (gap.cause == GapCause::copy) continue;
    const auto position = std::ranges::lower_bound(list.order, gap.next) - list.order.begin();
    idle.before_work[static_cast<std::size_t>(position)] += gap.time.duration();
    if (gap.culprit) idle.by_wait[*gap.culprit] += gap.time.duration();
  }
  return idle;
}

Nanoseconds time_of(const std::unordered_map<std::size_t, Nanoseconds>& times, std::size_t key) {
  const auto known = times.find(key);
  return known == times.end() ? 0 : known->second;
}

void add_work(const DeviceWork& work, Nanoseconds idle, HostAct& act) {
  if (is_kernel(work)) ++act.kernels;
  act.busy += work.time.duration();
  act.idle += idle;
}

using Threads = std::map<std::int64_t, HostThread>;

void add_acts_of_cpu(const DeviceWorkList& list, std::size_t first, std::size_t last, const IdleTimes& idle,
                     Threads& threads) {
  for (std::size_t i = first; i < last; ++i) {
    HostAct act{.time = list[i].time.begin, .call = Issued::kNone};
    add_work(list[i], time_of(idle.before_work, i), act);
    threads[list[i].stream].acts.push_back(act);
  }
}

void add_acts_of_calls(const DeviceWorkList& list, const Issued& issued, const std::vector<Iteration>& iterations,
                       const IdleTimes& idle, Threads& threads) {
  std::vector<HostAct> issuing(list.timeline->calls.size());
  for (std::size_t i = iterations.front().first_work; i < iterations.back().last_work; ++i) {
    const std::uint32_t call = issued.call_of(i);
    if (call != Issued::kNone) add_work(list[i], time_of(idle.before_work, i), issuing[call]);
  }
  for (std::size_t i = 0; i < issuing.size(); ++i) {
    const HostCall& call = list.timeline->calls[i];
    if (call.process != list.process) continue;
    HostThread& thread = threads[call.thread];
    HostAct& act = issuing[i];
    act.time = call.time.begin;
    act.call = static_cast<std::uint32_t>(i);
    if (act.kernels > 0 || act.busy > 0 || act.idle > 0) thread.acts.push_back(act);
    if (call.kind != HostCall::Kind::synchronize || !iteration_of_call(list, issued, iterations, i)) continue;
    thread.acts.push_back({.time = act.time, .call = act.call, .idle = time_of(idle.by_wait, i), .waits = true});
  }
}

}  // namespace

Threads host_threads(const DeviceWorkList& list, const Issued& issued, const std::vector<Iteration>& iterations,
                     const std::vector<Gap>& gaps) {
  const IdleTimes idle = idle_times(list, gaps);
  Threads threads;
  if (list.on_cpu()) {
    add_acts_of_cpu(list, iterations.front().first_work, iterations.back().last_work, idle, threads);
  } else {
    add_acts_of_calls(list, issued, iterations, idle, threads);
  }
  const std::vector<HostRange>& ranges = list.timeline->ranges;
  HostThread* thread = nullptr;
  std::int64_t number = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].process != list.process) continue;
    if (thread == nullptr || number != ranges[i].thread) thread = &threads[number = ranges[i].thread];
    thread->ranges.push_back(static_cast<std::uint32_t>(i));
  }
  return threads;
}

}  // namespace pianola::profiling
