#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <unordered_map>

namespace pianola::profiling {

/// What the host takes to issue one iteration, launch by launch: as recorded, less what the recording itself slowed it, if
/// that is known (Timeline::unrecorded).
struct HostPace {
  /// For each launch but the first: from the end of the launch or wait before it, of whichever thread, to its own end.
  /// Loading of data is left out, and so is what a launch takes longer than usual, since its queue is full then.
  std::unordered_map<const HostCall*, Nanoseconds> before;
  Nanoseconds per_launch = 0;  ///< Their mean; 0 where too few launches follow each other to tell.
  /// Time in which the host does what a graph does not take away: it loads data, or does something else between the last
  /// launch of the iteration and the first of the next one, longer than between any two within.
  Nanoseconds pauses = 0;
};

/// Of the iteration whose duration is the median.
[[nodiscard]] HostPace host_pace(const Timeline& timeline, const Analysis& analysis);

/// The iteration of median duration; there is one.
[[nodiscard]] const Iteration& typical_iteration(const Analysis& analysis);

}  // namespace pianola::profiling
