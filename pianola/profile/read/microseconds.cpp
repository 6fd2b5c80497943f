#include <pianola/profile/read/microseconds.hpp>

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <system_error>

namespace pianola::profiling {
namespace {

/// Digits of a fraction as thousandths, rounded: "5" is 500, "1236" is 124.
std::optional<std::int64_t> thousandths(std::string_view digits) {
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::int64_t value = 0;
  for (std::size_t i = 0; i < 3; ++i) value = 10 * value + (i < digits.size() ? digits[i] - '0' : 0);
  return value + (digits.size() > 3 && digits[3] >= '5' ? 1 : 0);
}

std::optional<Nanoseconds> parse_with_exponent(std::string_view number) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  if (!(std::abs(value) < static_cast<double>(kFurthestTime / 1000))) return std::nullopt;
  return std::llround(value * 1000);
}

}  // namespace

std::optional<Nanoseconds> parse_microseconds(std::string_view number) {
  if (number.find_first_of("eE") != std::string_view::npos) return parse_with_exponent(number);
  const bool negative = number.starts_with('-');
  if (negative) number.remove_prefix(1);
  const std::size_t point = number.find('.');
  const std::string_view whole = number.substr(0, point);
  std::uint64_t units = 0;
  const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), units);
  if (error != std::errc() || end != whole.data() + whole.size() || units >= kFurthestTime / 1000) return std::nullopt;
  const auto fraction = point == std::string_view::npos ? 0 : thousandths(number.substr(point + 1));
  if (!fraction) return std::nullopt;
  const std::int64_t time = static_cast<std::int64_t>(units) * 1000 + *fraction;
  return negative ? -time : time;
}

std::string to_microseconds(Nanoseconds time) {
  const auto size = time < 0 ? 0 - static_cast<std::uint64_t>(time) : static_cast<std::uint64_t>(time);
  return fmt::format("{}{}.{:03}", time < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace pianola::profiling
