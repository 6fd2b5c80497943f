#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace pianola::profiling {

/// A moment of a thread.
struct Moment {
  Nanoseconds time;
  std::size_t tag;  ///< The caller's own.
};

/// Calls visit(tag, open) for each moment, in order of time, with the ranges of the thread that are open at it, outermost
/// first. Ranges of a thread lie inside each other or apart; the timeline is sorted.
template <typename Visit>
void visit_enclosing(const Timeline& timeline, std::int32_t process, std::int64_t thread,
                     std::span<const Moment> moments, const Visit& visit) {
  std::vector<const HostRange*> open;
  std::size_t next = 0;
  for (const Moment& moment : moments) {
    for (; next < timeline.ranges.size() && timeline.ranges[next].time.begin <= moment.time; ++next) {
      const HostRange& range = timeline.ranges[next];
      if (range.process != process || range.thread != thread) continue;
      while (!open.empty() && open.back()->time.end <= range.time.begin) open.pop_back();
      open.push_back(&range);
    }
    while (!open.empty() && open.back()->time.end <= moment.time) open.pop_back();
    visit(moment.tag, std::span<const HostRange* const>(open));
  }
}

}  // namespace pianola::profiling
