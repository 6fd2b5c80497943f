#include <pianola/training/option_check.hpp>

#include <pianola/core/error.hpp>

#include <cmath>
#include <string>

namespace pianola::training {

void check_finite(const char* name, double value) {
  if (std::isfinite(value)) return;
  throw UsageError({.what = std::string(name) + " must be finite, got " + std::to_string(value)});
}

void check_not_negative(const char* name, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw UsageError({.what = std::string(name) + " must be finite and 0 or more, got " + std::to_string(value)});
}

void check_groups(std::size_t groups) {
  if (groups == 0) throw UsageError({.what = "an optimizer needs at least one group of parameters"});
}

}  // namespace pianola::training
