#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/schedule/schedule.hpp>

#include <cstddef>
#include <string>

namespace pianola {

/// A schedule as a timeline: a row per chunk, a column per step, F1 and B1 for forward and backward of microbatch 1. At
/// most `width` columns wide, where one step fits; what does not fit goes on in further blocks. "" if it is empty.
///
///     step      1   2   3   4   5   6   7   8
///     chunk 1  F1   .  F2   .   .  B1   .  B2
///     chunk 2   .  F1   .  F2  B1   .  B2   .
[[nodiscard]] PIANOLA_API std::string draw_timeline(const Schedule& schedule, std::size_t width = 100);

/// What `pianola schedule --json` prints: the order, sizes, layers and slots of each chunk, lifetimes, buffer counts.
[[nodiscard]] PIANOLA_API Report schedule_report(const Schedule& schedule);

/// What `pianola schedule` prints: schedule_report() as text with the timeline between facts and tables.
[[nodiscard]] PIANOLA_API std::string describe(const Schedule& schedule, std::size_t width = 100);

}  // namespace pianola
