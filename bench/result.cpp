#include "result.hpp"

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::bench {

double Case::median_of(std::string_view contender) const {
  for (const Series& one : series) {
    if (one.contender == contender) return median(one.samples);
  }
  throw UsageError({.what = fmt::format("'{}' has no contender '{}'", name, contender)});
}

Requirement within(const Case& measured, const std::string& contender, double absolute, double relative) {
  const double base = measured.median_of(measured.baseline);
  const double excess = measured.median_of(contender) - base;
  const double limit = std::max(absolute, relative * base);
  const std::string allowed =
      relative > 0 ? fmt::format("{:g} {} or {:g} %, whichever is more,", absolute, measured.unit, relative * 100)
                   : fmt::format("{:g} {}", absolute, measured.unit);
  return {.text = fmt::format("{}: at most {} above {}", contender, allowed, measured.baseline),
          .measured = excess,
          .limit = limit,
          .met = excess <= limit};
}

Requirement at_most_ratio(const Case& measured, const std::string& contender, double limit) {
  const double ratio = measured.median_of(contender) / measured.median_of(measured.baseline);
  return {.text = fmt::format("{}: at most {:g}x of {}", contender, limit, measured.baseline),
          .measured = ratio,
          .limit = limit,
          .met = ratio <= limit};
}

Requirement at_least_speedup(const Case& measured, const std::string& contender, double limit, const std::string& of) {
  const std::string& other = of.empty() ? measured.baseline : of;
  const double speedup = measured.median_of(other) / measured.median_of(contender);
  return {.text = fmt::format("{}: at least {:g}x as fast as {}", contender, limit, other),
          .measured = speedup,
          .limit = limit,
          .met = speedup >= limit};
}

Requirement at_most(const Case& measured, std::string text, double limit) {
  double largest = 0;
  for (const Series& one : measured.series) {
    largest = std::max(largest, *std::max_element(one.samples.begin(), one.samples.end()));
  }
  return {.text = std::move(text), .measured = largest, .limit = limit, .met = largest <= limit};
}

}  // namespace pianola::bench
