#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>

namespace pianola {

/// A timeline with what it says, for people and programs: verdict, reasons, obstacles, an iteration in numbers, idle time by
/// cause, scopes with their predicted time and memory, the regions that lose most, the host's waits. Times are
/// microseconds.
/// @param regions  How many of them; the longest idle ones.
[[nodiscard]] PIANOLA_API Report profile_report(const Timeline& timeline, const Analysis& analysis,
                                                const Decision& decision, std::size_t regions = 12);

}  // namespace pianola
