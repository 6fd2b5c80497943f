#include <pianola/core/number_check.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <cmath>

namespace pianola {
namespace {

void check(bool right, std::string_view name, std::string_view wanted, double value) {
  if (!right) throw UsageError({.what = fmt::format("{} must be {}, got {}", name, wanted, value)});
}

}  // namespace

void check_at_least(std::int64_t least, std::string_view name, std::int64_t value) {
  if (value < least) throw UsageError({.what = fmt::format("{} must be {} or more, got {}", name, least, value)});
}

void check_finite(std::string_view name, double value) { check(std::isfinite(value), name, "finite", value); }

void check_not_negative(std::string_view name, double value) {
  check(std::isfinite(value) && value >= 0, name, "finite and 0 or more", value);
}

void check_positive(std::string_view name, double value) {
  check(std::isfinite(value) && value > 0, name, "finite and above 0", value);
}

}  // namespace pianola
