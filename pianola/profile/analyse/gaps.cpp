#include <pianola/profile/analyse/gaps.hpp>

#include <pianola/profile/analyse/data_loading.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr Nanoseconds kIssuedEarly = 3000;     // A call takes about this long to reach a device that has nothing to do.
constexpr Nanoseconds kBetweenKernels = 2000;  // A gap is no longer than this where the next work was there already.

struct WaitingCall {
  TimeSpan time;
  std::size_t call;
};

std::vector<WaitingCall> waiting_calls(const DeviceWorkList& list) {
  const std::vector<HostCall>& calls = list.timeline->calls;
  std::vector<WaitingCall> waiting;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind != HostCall::Kind::synchronize || calls[i].process != list.process) continue;
    waiting.push_back({calls[i].time, i});
  }
  std::ranges::stable_sort(waiting, {}, [](const WaitingCall& call) { return call.time.end; });
  return waiting;
}

/// Tells why a device had nothing to do.
class CauseFinder {
 public:
  CauseFinder(const DeviceWorkList& list, const Issued& issued)
      : list_(list),
        issued_(issued),
        waiting_(waiting_calls(list)),
        loading_(data_loading_times(*list.timeline, list.process)) {}

  // `next` is the position of the work that ended the gap.
  [[nodiscard]] Gap explain(TimeSpan time, std::size_t next) const {
    Gap gap{.time = time, .next = list_.order[next], .culprit = {}};
    const HostCall* launch = issued_.call(next);
    gap.culprit = wait_in(time, launch == nullptr ? time.end : std::min(launch->time.begin, time.end));
    if (gap.culprit) {
      gap.cause = GapCause::synchronization;
    } else if (2 * covered(loading_, time) > time.duration()) {
      gap.cause = GapCause::data;
    } else {
      gap.cause = was_issued(time, next, launch) ? GapCause::device : GapCause::launch;
    }
    return gap;
  }

 private:
  // The call that fills most of the gap of those that ended in it, no later than `until`.
  [[nodiscard]] std::optional<std::size_t> wait_in(TimeSpan gap, Nanoseconds until) const {
    std::optional<std::size_t> culprit;
    Nanoseconds most = -1;
    const auto end_of = [](const WaitingCall& call) { return call.time.end; };
    for (auto call = std::ranges::upper_bound(waiting_, gap.begin, {}, end_of);
         call != waiting_.end() && call->time.end <= until; ++call) {
      const Nanoseconds fills = call->time.end - std::max(call->time.begin, gap.begin);
      if (fills <= most) continue;
      most = fills;
      culprit = call->call;
    }
    return culprit;
  }

  [[nodiscard]] bool was_issued(TimeSpan gap, std::size_t next, const HostCall* launch) const {
    if (list_.on_cpu()) return false;
    if (launch == nullptr) return gap.duration() < kBetweenKernels;
    if (issued_.first_work_of(issued_.call_of(next)) != next) return true;
    return launch->time.end <= gap.begin - kIssuedEarly;
  }

  const DeviceWorkList& list_;
  const Issued& issued_;
  std::vector<WaitingCall> waiting_;
  std::vector<TimeSpan> loading_;
};

/// Goes through work by begin and knows up to when the work so far lasts.
class Reach {
 public:
  explicit Reach(Nanoseconds begin) : end_(begin) {}

  // What was free before the work; empty where nothing was.
  TimeSpan free_before(const TimeSpan& work) {
    const TimeSpan free{end_, std::max(end_, work.begin)};
    end_ = std::max(end_, work.end);
    return free;
  }

 private:
  Nanoseconds end_;
};

void add_idle_gaps(const DeviceWorkList& list, const Issued& issued, TimeSpan within, std::vector<Gap>& gaps) {
  const CauseFinder causes(list, issued);
  Reach reach(list[0].time.begin);
  for (std::size_t i = 0; i < list.size() && list[i].time.begin <= within.end; ++i) {
    const TimeSpan free = reach.free_before(list[i].time);
    if (free.duration() > 0 && free.begin >= within.begin) gaps.push_back(causes.explain(free, i));
  }
}

// Since when a kernel waits: when its call ended. Where that is unknown, one that follows at once was waiting.
Nanoseconds waits_since(const DeviceWorkList& list, const Issued& issued, std::size_t kernel, TimeSpan copying) {
  const HostCall* launch = issued.call(kernel);
  if (launch != nullptr) return launch->time.end;
  constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
  return list[kernel].time.begin - copying.end < kBetweenKernels ? copying.begin : kNever;
}

void add_copy_gaps(const DeviceWorkList& list, const Issued& issued, TimeSpan within, std::vector<Gap>& gaps) {
  Reach reach(list[0].time.begin);
  std::vector<TimeSpan> copies;  // That may last until there is no other work.
  for (std::size_t i = 0; i < list.size() && list[i].time.begin <= within.end; ++i) {
    if (copy_direction(*list.timeline, list[i]) != CopyDirection::other) {
      copies.push_back(list[i].time);
      continue;
    }
    const TimeSpan free = reach.free_before(list[i].time);
    for (const TimeSpan& copy : free.duration() > 0 ? united(copies) : std::vector<TimeSpan>{}) {
      TimeSpan waiting{std::max({copy.begin, free.begin, within.begin}), std::min({copy.end, free.end, within.end})};
      waiting.begin = std::max(waiting.begin, waits_since(list, issued, i, waiting));
      if (waiting.begin >= waiting.end) continue;
      gaps.push_back({.time = waiting, .cause = GapCause::copy, .next = list.order[i], .culprit = {}});
    }
    std::erase_if(copies, [&](const TimeSpan& copy) { return copy.end <= list[i].time.begin; });
  }
}

}  // namespace

std::vector<Gap> find_gaps(const DeviceWorkList& list, const Issued& issued, TimeSpan within) {
  std::vector<Gap> gaps;
  add_idle_gaps(list, issued, within, gaps);
  if (!list.on_cpu()) add_copy_gaps(list, issued, within, gaps);
  std::ranges::stable_sort(gaps, {}, [](const Gap& gap) { return gap.time.begin; });
  return gaps;
}

}  // namespace pianola::profiling
