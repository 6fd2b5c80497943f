#pragma once
#include <pianola/profile/read/time_check.hpp>
#include <pianola/profile/timeline.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// Times of Chrome traces are microseconds as decimal numbers, "4482283798715.578"; a double would lose nanoseconds.
///
/// Rounds what is finer than a nanosecond. Nothing where `number` is no decimal number or is further off than kFurthestTime.
[[nodiscard]] std::optional<Nanoseconds> parse_microseconds(std::string_view number);

/// `time` in microseconds with three decimals: "-0.050".
[[nodiscard]] std::string to_microseconds(Nanoseconds time);

}  // namespace pianola::profiling
