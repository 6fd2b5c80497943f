#include <pianola/core/report_format.hpp>

#include <pianola/core/display_width.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

namespace pianola {
namespace {

constexpr int kMaxDecimals = 4;

std::string format_double(double number, int decimals) {
  const double size = std::abs(number);
  if (!std::isfinite(number)) return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  const bool vanishes = size != 0 && size < 0.5 * std::pow(10.0, -decimals);
  return vanishes || size >= 1e15 ? fmt::format("{:.3g}", number) : fmt::format("{:.{}f}", number, decimals);
}

std::optional<double> as_number(const ReportValue& value) {
  return std::visit(
      [](const auto& v) -> std::optional<double> {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) return static_cast<double>(v);
        return std::nullopt;
      },
      value.variant());
}

}  // namespace

int decimals_for(std::span<const ReportValue> values) {
  double smallest = std::numeric_limits<double>::infinity();
  bool whole = true;
  for (const ReportValue& value : values) {
    const double* number = std::get_if<double>(&value.variant());
    if (number == nullptr || !std::isfinite(*number)) continue;
    whole = whole && *number == std::floor(*number);
    if (*number != 0) smallest = std::min(smallest, std::abs(*number));
  }
  if (whole || std::isinf(smallest)) return 0;
  return std::clamp(2 - static_cast<int>(std::floor(std::log10(smallest))), 0, kMaxDecimals);
}

std::string format_bytes(double bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (std::abs(bytes) < 1024) return fmt::format("{:.0f} bytes", bytes);
  std::size_t unit = 0;
  for (bytes /= 1024; std::abs(bytes) >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_value(const ReportValue& value, std::string_view unit, int decimals) {
  if (const auto number = as_number(value); number && unit == "bytes" && std::isfinite(*number)) {
    return format_bytes(*number);
  }
  return std::visit(
      [&](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) return "-";
        if constexpr (std::is_same_v<T, std::string>) return one_line(v);
        if constexpr (std::is_same_v<T, bool>) return v ? "yes" : "no";
        if constexpr (std::is_same_v<T, double>) return format_double(v, decimals);
        if constexpr (std::is_integral_v<T>) return fmt::format("{}", v);
      },
      value.variant());
}

}  // namespace pianola
