#include <pianola/profile/analyse/host_pace.hpp>

#include <pianola/profile/analyse/data_loading.hpp>
#include <pianola/profile/analyse/median.hpp>
#include <pianola/profile/call_kind.hpp>

#include <algorithm>
#include <optional>
#include <vector>

namespace pianola::profiling {
namespace {

// Fewer launches say little.
constexpr std::size_t kFewLaunches = 8;

// From the end of a launch or wait to the begin of the next launch.
struct Interval {
  const HostCall* next;
  TimeSpan time;
};

struct Intervals {
  std::vector<Interval> within;
  std::optional<Interval> to_next_iteration;
};

Intervals intervals_between_launches(const Timeline& timeline, std::int32_t process, TimeSpan iteration) {
  Intervals intervals;
  std::optional<Nanoseconds> last;
  for (const HostCall& call : timeline.calls) {
    if (call.process != process || call.time.begin < iteration.begin) continue;
    if (call.kind == HostCall::Kind::synchronize) last = call.time.end;
    if (!issues_work(call)) continue;
    // Of two threads, one may launch while the other one does.
    const Interval interval{&call, {std::min(last.value_or(call.time.begin), call.time.begin), call.time.begin}};
    if (call.time.begin >= iteration.end) {
      if (last) intervals.to_next_iteration = interval;
      break;
    }
    if (last) intervals.within.push_back(interval);
    last = call.time.end;
  }
  return intervals;
}

Nanoseconds overlap(const std::vector<TimeSpan>& spans, TimeSpan time) {
  Nanoseconds sum = 0;
  for (const TimeSpan& span : spans) {
    sum += std::max<Nanoseconds>(std::min(span.end, time.end) - std::max(span.begin, time.begin), 0);
  }
  return sum;
}

Nanoseconds usual_launch(const std::vector<Interval>& intervals) {
  std::vector<Nanoseconds> durations;
  for (const Interval& interval : intervals) durations.push_back(interval.next->time.duration());
  return durations.empty() ? 0 : median(durations);
}

// Of the time that the host takes while it is recorded, what it takes otherwise. At most that: where the device is the slower
// one, the host is not seen.
double unrecorded_share(const Analysis& analysis) {
  if (analysis.unrecorded >= analysis.duration) return 1;
  return static_cast<double>(analysis.unrecorded) / static_cast<double>(analysis.duration);
}

}  // namespace

HostPace host_pace(const Timeline& timeline, const Analysis& analysis) {
  const Intervals intervals = intervals_between_launches(timeline, analysis.process, typical_iteration(analysis).host);
  const std::vector<TimeSpan> loading = data_loading_times(timeline, analysis.process);
  const Nanoseconds usual = usual_launch(intervals.within);
  const double share = unrecorded_share(analysis);
  HostPace pace;
  Nanoseconds sum = 0, longest = 0;
  for (const Interval& interval : intervals.within) {
    const Nanoseconds data = overlap(loading, interval.time);
    const Nanoseconds working = interval.time.duration() - data;
    const Nanoseconds recorded = working + std::min(interval.next->time.duration(), usual);
    const auto all = static_cast<Nanoseconds>(share * static_cast<double>(recorded));
    pace.before.emplace(interval.next, all);
    pace.pauses += data;
    sum += all;
    longest = std::max(longest, working);
  }
  if (const auto& last = intervals.to_next_iteration) {
    const Nanoseconds data = overlap(loading, last->time);
    pace.pauses += data + std::max<Nanoseconds>(last->time.duration() - data - longest, 0);
  }
  if (intervals.within.size() >= kFewLaunches)
    pace.per_launch = sum / static_cast<Nanoseconds>(intervals.within.size());
  return pace;
}

const Iteration& typical_iteration(const Analysis& analysis) {
  std::vector<const Iteration*> sorted;
  for (const Iteration& iteration : analysis.iterations) sorted.push_back(&iteration);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(), [](const Iteration* one, const Iteration* other) {
    return one->time.duration() < other->time.duration();
  });
  return **middle;
}

}  // namespace pianola::profiling
