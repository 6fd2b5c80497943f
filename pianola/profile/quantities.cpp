#include <pianola/profile/quantities.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace pianola::profiling {
namespace {

constexpr std::string_view kUnknown = "-";

struct Unit {
  std::string_view name;
  double nanoseconds;
};
constexpr std::array kUnits = {Unit{"ns", 1}, Unit{"us", 1e3}, Unit{"ms", 1e6}, Unit{"s", 1e9}};

// The bounds are those at which the number would be rounded to one digit more.
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

std::string without_trailing_zeros(std::string number) {
  if (number.find('.') == std::string::npos) return number;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number;
}

std::string with_thousands(double whole) {
  std::string digits = fmt::format("{:.0f}", whole);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace

std::string duration_text(Nanoseconds time) {
  if (time == 0) return "0 us";
  const double size = std::abs(static_cast<double>(time));
  const char* sign = time < 0 ? "-" : "";
  if (size < 1000) return fmt::format("{}{:.0f} ns", sign, size);
  const auto fits = [size](const Unit& unit) { return size / unit.nanoseconds < 999.5; };
  const auto* unit = std::find_if(kUnits.begin() + 1, kUnits.end() - 1, fits);
  return fmt::format("{}{} {}", sign, three_digits(size / unit->nanoseconds), unit->name);
}

std::string percent_text(double share) {
  if (!std::isfinite(share)) return std::string(kUnknown);
  const double percent = 100 * share;
  if (percent == 0) return "0 %";
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent > 99 && percent < 100) return fmt::format("{:.1f} %", std::min(percent, 99.9));
  return fmt::format("{:.{}f} %", percent, std::abs(percent) < 9.95 ? 1 : 0);
}

std::string count_text(double count) {
  if (!std::isfinite(count)) return std::string(kUnknown);
  if (count > 0 && count < 0.01) return "<0.01";
  if (std::abs(count) >= 99.95 || count == std::round(count)) return with_thousands(count);
  return without_trailing_zeros(fmt::format("{:.{}f}", count, std::abs(count) < 9.995 ? 2 : 1));
}

std::string counted_text(double count, std::string_view one, std::string_view many) {
  const std::string number = count_text(count);
  return fmt::format("{} {}", number, number == "1" ? one : many);
}

std::string factor_text(double factor) {
  if (!std::isfinite(factor) || factor <= 0) return std::string(kUnknown);
  if (factor < 1.995) return fmt::format("{:.2f}x", factor);
  return fmt::format("{:.{}f}x", factor, factor < 9.95 ? 1 : 0);
}

}  // namespace pianola::profiling
