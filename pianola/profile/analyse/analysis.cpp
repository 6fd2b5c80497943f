#include <pianola/profile/analyse/analysis.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/durations.hpp>
#include <pianola/profile/analyse/gaps.hpp>
#include <pianola/profile/analyse/host_threads.hpp>
#include <pianola/profile/analyse/issued.hpp>
#include <pianola/profile/analyse/iteration_figures.hpp>
#include <pianola/profile/analyse/iterations.hpp>
#include <pianola/profile/analyse/median.hpp>
#include <pianola/profile/analyse/memory_use.hpp>
#include <pianola/profile/analyse/regions.hpp>
#include <pianola/profile/analyse/waits.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

namespace pianola {
namespace {

template <class Event>
bool is_sorted(const std::vector<Event>& events) {
  return std::ranges::is_sorted(events, {}, [](const Event& event) { return event.time.begin; });
}

void check_sorted(const Timeline& timeline) {
  const bool memory = std::ranges::is_sorted(timeline.memory, {}, &MemoryEvent::time);
  if (memory && is_sorted(timeline.work) && is_sorted(timeline.calls) && is_sorted(timeline.ranges)) return;
  throw UsageError({.what = "the events of the timeline are not in the order in which they began",
                    .where = timeline.source,
                    .fix = "call Timeline::sort() before analyse()"});
}

/// The median over iterations of a figure.
template <class Figure>
auto typical(const std::vector<Iteration>& iterations, Figure figure) {
  std::vector<decltype(figure(iterations.front()))> values;
  for (const Iteration& iteration : iterations) values.push_back(figure(iteration));
  return profiling::median(std::move(values));
}

double jitter_of(const std::vector<Iteration>& iterations) {
  double sum = 0;
  for (const Iteration& iteration : iterations) sum += static_cast<double>(iteration.time.duration());
  const double mean = sum / static_cast<double>(iterations.size());
  double squares = 0;
  for (const Iteration& iteration : iterations) {
    squares += std::pow(static_cast<double>(iteration.time.duration()) - mean, 2);
  }
  return mean == 0 ? 0 : std::sqrt(squares / static_cast<double>(iterations.size())) / mean;
}

void add_medians(Analysis& analysis) {
  const std::vector<Iteration>& all = analysis.iterations;
  analysis.duration = typical(all, [](const Iteration& i) { return i.time.duration(); });
  analysis.busy = typical(all, [](const Iteration& i) { return i.busy; });
  analysis.kernels = typical(all, [](const Iteration& i) { return static_cast<double>(i.kernels); });
  analysis.launches = typical(all, [](const Iteration& i) { return static_cast<double>(i.launches); });
  analysis.graph_launches = typical(all, [](const Iteration& i) { return static_cast<double>(i.graph_launches); });
  analysis.synchronizations = typical(all, [](const Iteration& i) { return static_cast<double>(i.synchronizations); });
  analysis.in_launches = typical(all, [](const Iteration& i) { return i.in_launches; });
}

double share(Nanoseconds part, Nanoseconds whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void add_means(Analysis& analysis) {
  Nanoseconds busy = 0;
  std::array<Nanoseconds, kGapCauses> idle = {};
  for (const Iteration& iteration : analysis.iterations) {
    busy += iteration.busy;
    for (std::size_t cause = 0; cause < kGapCauses; ++cause) idle[cause] += iteration.idle[cause];
  }
  const Nanoseconds time = analysis.iterations.back().time.end - analysis.iterations.front().time.begin;
  analysis.utilisation = share(busy, time);
  const auto count = static_cast<double>(analysis.iterations.size());
  for (std::size_t cause = 0; cause < kGapCauses; ++cause) {
    analysis.idle[cause] = std::llround(static_cast<double>(idle[cause]) / count);
  }
  analysis.jitter = jitter_of(analysis.iterations);
}

// A profiler slows the host, not a GPU: it made longer what that is idle. Operations of the CPU are slowed themselves.
void add_unrecorded(Nanoseconds known, Analysis& analysis) {
  analysis.unrecorded = known == 0 ? analysis.duration : known;
  if (known != 0 && analysis.device >= 0) analysis.utilisation = std::min(share(analysis.busy, known), 1.0);
}

// That of profile(), where it timed its runs too.
std::string range_of(const Timeline& timeline, const AnalysisOptions& options) {
  if (!options.range.empty() || timeline.unrecorded == 0) return options.range;
  const bool is_there = std::ranges::any_of(timeline.ranges, [&](const HostRange& range) {
    return range.kind == HostRange::Kind::annotation && timeline.name(range.name) == kProfiledStep;
  });
  return is_there ? kProfiledStep : "";
}

}  // namespace

const char* in_words(GapCause cause) noexcept {
  switch (cause) {
    case GapCause::launch:
      return "launch";
    case GapCause::synchronization:
      return "synchronization";
    case GapCause::data:
      return "data";
    case GapCause::copy:
      return "copy";
    case GapCause::device:
      return "device";
  }
  return "";
}

Analysis analyse(const Timeline& timeline, const AnalysisOptions& options) {
  check_sorted(timeline);
  Analysis analysis;
  profiling::DeviceWorkList list = profiling::choose_device(timeline, options.process, options.device);
  const profiling::Issued issued(list);
  profiling::FoundIterations found = profiling::find_iterations(list, issued, range_of(timeline, options));
  analysis.gaps = profiling::find_gaps(list, issued, found.on_device());
  analysis.iterations = profiling::iteration_figures(list, issued, found, analysis.gaps);
  add_medians(analysis);
  add_means(analysis);
  analysis.device = list.device;
  const bool is_timed = options.range.empty() || options.range == kProfiledStep;
  add_unrecorded(is_timed ? timeline.unrecorded : 0, analysis);
  analysis.durations = profiling::summarize_durations(list, analysis.iterations.front().first_work,
                                                      analysis.iterations.back().last_work);
  const auto threads = profiling::host_threads(list, issued, analysis.iterations, analysis.gaps);
  analysis.regions = profiling::find_regions(timeline, threads, analysis.iterations);
  analysis.waits = profiling::find_waits(timeline, threads, analysis.iterations.size());
  analysis.process = list.process;
  analysis.by = found.by;
  analysis.range = std::move(found.range);
  analysis.problem = std::move(found.problem);
  analysis.warmup = found.warmup;
  analysis.order = std::move(list.order);
  analysis.memory = profiling::memory_use(timeline, analysis);
  return analysis;
}

}  // namespace pianola
