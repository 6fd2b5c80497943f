#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report_value.hpp>

#include <span>
#include <string>
#include <string_view>

namespace pianola {

/// Digits after the point that show the smallest number other than 0 with three digits, between 0 and 4; 0 where all
/// numbers are whole. What is absent or no floating-point number does not count.
[[nodiscard]] PIANOLA_API int decimals_for(std::span<const ReportValue> values);

/// `bytes` in the largest binary unit that keeps it at 1 or more: "512 bytes", "2.0 MiB".
[[nodiscard]] PIANOLA_API std::string format_bytes(double bytes);

/// A value as people read it, on one line, without its unit (but with it where that is "bytes"). `decimals` counts for
/// floating-point numbers only; numbers too large or too small for it are written with an exponent.
[[nodiscard]] PIANOLA_API std::string format_value(const ReportValue& value, std::string_view unit, int decimals);

}  // namespace pianola
