#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/issued.hpp>

#include <vector>

namespace pianola::profiling {

/// The times between `within.begin` and `within.end` in which the device did nothing, and those in which it did nothing
/// but copy to or from the host while a kernel waited (GapCause::copy), each with its cause; by begin.
///
/// The cause is the first that holds:
/// - synchronization: a call that waits ended in the gap, before the call that issued the next work began;
/// - data: ranges of a data loader cover more than half of the gap;
/// - device: the next work was issued 3 us or more before the work before it ended, or by the launch of a graph of
///   which some had run already; where the call is unknown: the gap is shorter than 2 us; never on a CPU;
/// - launch.
[[nodiscard]] std::vector<Gap> find_gaps(const DeviceWorkList& list, const Issued& issued, TimeSpan within);

}  // namespace pianola::profiling
