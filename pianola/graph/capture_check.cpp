#include <pianola/graph/capture_check.hpp>

#include <pianola/core/number_check.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/memory_limit.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/plain_check.hpp>

#include <fmt/format.h>

#include <cstddef>

namespace pianola::graph {
namespace {

void check_plan(const CaptureOptions& options) {
  if (options.warmup == 0 && RunToPlanBy::known() == nullptr) {
    throw UsageError({.what = "plan_memory needs a warm-up run, which shows the lives of the blocks, and warmup = 0",
                      .fix = "warm up once or more"});
  }
}

void check_options(const CaptureOptions& options) {
  check_at_least(0, "warmup", options.warmup);
  for (const at::Generator& generator : options.generators) {
    if (!generator.defined()) throw UsageError({.what = "an entry of 'generators' is undefined"});
  }
  check_branches(options.branches, options.parallel);
  if (wants_branches(options) && !options.trace) {
    throw UsageError({.what = fmt::format("branches = {} needs the trace, and 'trace' is off", options.branches),
                      .fix = "leave 'trace' on, or capture without 'branches'"});
  }
  if (options.memory_limit != 0 && options.warmup == 0) {
    throw UsageError({.what = "memory_limit needs a warm-up run, which shows what the step takes, and warmup = 0",
                      .fix = "warm up once or more, or ask pianola::predict_memory() before"});
  }
  if (options.plan_memory) check_plan(options);
  if (options.check == CheckMode::strict && !options.trace) {
    throw UsageError({.what = "check = strict needs the trace, and 'trace' is off",
                      .fix = "leave 'trace' on, or capture with CheckMode::standard"});
  }
}

void check_thread_is_free() {
  if (allocations_into_pools() != 0) {
    throw UsageError(
        {.what = "a capture was begun while what this thread allocates goes to a pool",
         .fix = "capture behind the end of GraphPool::Allocations, in Python of `with pool.allocations()`"});
  }
  if (capture_is_open()) {
    throw UsageError({.what = "a capture is open on this thread already",
                      .fix = "captures do not nest: end the outer one first, or capture both parts as one step"});
  }
}

// What the step would meet.
void check_surroundings(const CaptureOptions& options) {
  using trace::Oddity;
  if (const Oddity modes = trace::oddity_of_modes(); modes != Oddity::none) {
    throw CaptureError(trace::refuse_modes(modes, "a capture"));
  }
  for (std::size_t i = 0; i < options.inputs.size(); ++i) {
    const Oddity oddity = trace::oddity_of_input(options.inputs[i]);
    if (oddity == Oddity::none) continue;
    throw CaptureError(trace::refuse_input(oddity, fmt::format("input {}", i), options.inputs[i]));
  }
}

}  // namespace

void check_capture(const CaptureOptions& options) {
  check_options(options);
  check_thread_is_free();
  check_surroundings(options);
  check_static_inputs(options.inputs, options.memory_limit);
}

std::optional<trace::OddWork> odd_work_of(const trace::OpStream& step, bool may_communicate) {
  std::optional<trace::OddWork> odd = step.odd_work();
  return odd || may_communicate ? odd : step.communication();
}

void check_plain(const trace::OpStream& step, bool may_communicate) {
  if (const auto odd = odd_work_of(step, may_communicate)) throw CaptureError(odd->diagnosis());
}

}  // namespace pianola::graph
