#include <pianola/training/learning_rate.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

namespace pianola {
namespace {

void check_steps(std::int64_t steps, std::int64_t least = 1) {
  if (steps >= least) return;
  throw UsageError({.what = fmt::format("a learning rate needs {} steps or more, got {}", least, steps)});
}

double anneal(double from, double to, double part) {
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

}  // namespace

LearningRate::LearningRate(Function function) : function_(std::move(function)) {
  if (!function_) throw UsageError({.what = "a learning rate needs a function, got an empty one"});
}

LearningRate LearningRate::constant() {
  return LearningRate([](std::int64_t, double base) { return base; });
}

LearningRate LearningRate::linear(std::int64_t steps, double start, double end) {
  check_steps(steps);
  check_not_negative("start", start);
  check_not_negative("end", end);
  return LearningRate([=](std::int64_t step, double base) {
    const auto done = static_cast<double>(std::min(steps, step));
    return base * (start + (end - start) * done / static_cast<double>(steps));
  });
}

LearningRate LearningRate::cosine(std::int64_t steps, double minimum) {
  check_steps(steps);
  check_not_negative("minimum", minimum);
  return LearningRate([=](std::int64_t step, double base) {
    const auto done = static_cast<double>(std::min(steps, step));
    return minimum + (base - minimum) * (1 + std::cos(std::numbers::pi * done / static_cast<double>(steps))) / 2;
  });
}

LearningRate LearningRate::one_cycle(std::int64_t steps, const OneCycleOptions& options) {
  check_steps(steps);
  check_not_negative("pct_start", options.pct_start);
  if (options.pct_start > 1) {
    throw UsageError({.what = fmt::format("pct_start must be between 0 and 1, got {}", options.pct_start)});
  }
  check_positive("div_factor", options.div_factor);
  check_positive("final_div_factor", options.final_div_factor);
  const double top = options.pct_start * static_cast<double>(steps) - 1, last = static_cast<double>(steps) - 1;
  return LearningRate([=](std::int64_t step, double base) {
    const double now = std::min(static_cast<double>(step), last);
    const double first = base / options.div_factor;
    // A phase of no length is over when it begins.
    if (now <= top) return anneal(first, base, top > 0 ? now / top : 1);
    return anneal(base, first / options.final_div_factor, last > top ? (now - top) / (last - top) : 1);
  });
}

LearningRate LearningRate::step_decay(std::int64_t every, double gamma) {
  check_steps(every);
  check_not_negative("gamma", gamma);
  return LearningRate(
      [=](std::int64_t step, double base) { return base * std::pow(gamma, static_cast<double>(step / every)); });
}

LearningRate LearningRate::sequence(LearningRate first, std::int64_t steps, LearningRate second) {
  check_steps(steps, 0);
  return LearningRate([first = std::move(first), steps, second = std::move(second)](std::int64_t step, double base) {
    return step < steps ? first(step, base) : second(step - steps, base);
  });
}

LearningRate LearningRate::warmup(std::int64_t steps, LearningRate after, double start) {
  return sequence(linear(steps, start, 1), steps, std::move(after));
}

double LearningRate::operator()(std::int64_t step, double base) const {
  if (step < 0) throw UsageError({.what = fmt::format("steps count from 0, got {}", step)});
  return function_(step, base);
}

}  // namespace pianola
