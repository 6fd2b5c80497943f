#pragma once
#include <pianola/profile/timeline.hpp>

#include <string>
#include <string_view>

namespace pianola::profiling {

/// In the unit that suits it, with three digits: "640 ns", "842 us", "12.3 ms", "4.07 s"; "0 us" for 0.
[[nodiscard]] std::string duration_text(Nanoseconds time);

/// A share of 1: "42 %", "4.2 %", "<0.1 %". Says "100 %" and "0 %" only of exactly that.
[[nodiscard]] std::string percent_text(double share);

/// "612", "12,345"; with decimals where it is small and not whole: "2.5", "0.33".
[[nodiscard]] std::string count_text(double count);

/// "1 launch", "2 launches": with the singular where count_text() says 1.
[[nodiscard]] std::string counted_text(double count, std::string_view one, std::string_view many);

/// How many times as fast: "1.08x", "2.4x", "12x".
[[nodiscard]] std::string factor_text(double factor);

}  // namespace pianola::profiling
