#include <pianola/verify/verification.hpp>

#include <pianola/verify/compare.hpp>
#include <pianola/verify/devices.hpp>
#include <pianola/verify/graph_memory.hpp>
#include <pianola/verify/investigation.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace pianola::verification {
namespace {

using Clock = std::chrono::steady_clock;

// Those that one side at least has.
std::size_t count_tensors(const std::vector<Pair>& pairs) {
  return static_cast<std::size_t>(std::ranges::count_if(pairs, [](const Pair& pair) {
    return pair.role != "generator" && (pair.eager.defined() || pair.graphed.defined());
  }));
}

}  // namespace

VerifyReport Verification::run() {
  const auto start = Clock::now();
  report_.subject = options_.subject;
  try {
    run_steps();
  } catch (const StepError& error) {
    report_.verdict = Verdict::failed;
    report_.error = error.what();
  } catch (const c10::Error& error) {
    report_.verdict = Verdict::failed;
    report_.error = fmt::format("comparing failed: {}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    report_.verdict = Verdict::failed;
    report_.error = fmt::format("comparing failed: {}", error.what());
  }
  finish();
  report_.total_time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
  return std::move(report_);
}

void Verification::run_steps() {
  run_eager();
  if (report_.verdict != Verdict::equal) return;
  if (compared_nothing()) {
    report_.verdict = Verdict::failed;
    report_.error =
        "there is nothing to compare: the step returns no tensor, writes none of its inputs, and `state` is empty; "
        "return what it computes, or list what it writes in `state`";
    return;
  }
  warm_up_graphed();
  run_graphed();
}

void Verification::run_eager() {
  runner_.rewind(Side::eager);
  records_.reserve(static_cast<std::size_t>(options_.steps));
  for (int step = 1; step <= options_.steps; ++step) {
    Outcome outcome;
    if (step == 1) {
      first_ = observe(runner_, step, {.sites = options_.narrow, .values = false});
      outcome = std::exchange(first_.outcome, {});
    } else {
      outcome = runner_.run(Side::eager, step);
    }
    report_.eager_time += runner_.time();
    records_.push_back(runner_.record(outcome, records_.empty() ? nullptr : &records_.back()));
    if (step == 1 && !first_step_repeats()) return;
    runner_.between(step);
  }
}

// With `reset` eager can start over at any time, and need not now.
bool Verification::first_step_repeats() {
  if (!options_.repeat_eager || options_.reset || !options_.between || options_.steps == 1) return true;
  runner_.rewind(Side::eager);
  const ObservedStep again = observe(runner_, 1, {.sites = false, .values = false});
  Comparison comparison = compare(runner_.pairs(records_.front(), again.outcome), options_.tolerance, 1,
                                  {.one = "the first run", .other = "the second"});
  if (comparison.mismatches.empty()) return true;
  Investigation(runner_, records_, first_, report_).of_eager(1, std::move(comparison), again);
  return false;
}

bool Verification::compared_nothing() const {
  if (!state_.listed().empty() || !records_.front().outcome.results.empty()) return false;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Outcome untouched{.inputs = runner_.hand_out(static_cast<int>(i) + 1)};
    const Comparison inputs = compare(runner_.pairs({.outcome = records_[i].outcome}, untouched), {}, 0);
    const auto of_the_step = [](const Mismatch& mismatch) { return mismatch.difference.role != "generator"; };
    if (std::ranges::any_of(inputs.mismatches, of_the_step)) return false;
  }
  return true;
}

void Verification::warm_up_graphed() {
  if (options_.graphed_warmup == 0) return;
  runner_.rewind(Side::graphed);
  for (int call = 0; call < options_.graphed_warmup; ++call) {
    (void)runner_.run(Side::graphed, 1);
    state_.note_static_gradients();
  }
}

void Verification::run_graphed() {
  runner_.rewind(Side::graphed);
  for (int step = 1; step <= options_.steps; ++step) {
    poison();
    Outcome outcome = runner_.run(Side::graphed, step);
    report_.graphed_time += runner_.time();
    state_.note_static_gradients();

    const StepRecord& eager = records_[static_cast<std::size_t>(step) - 1];
    const std::vector<Pair> pairs = runner_.pairs(eager, outcome);
    report_.steps = step;
    report_.tensors = std::max(report_.tensors, count_tensors(pairs));
    if (outcome.results.size() != eager.outcome.results.size()) {
      note(fmt::format("eager returns {} tensors in step {}, the graphed side {}", eager.outcome.results.size(), step,
                       outcome.results.size()));
    }
    Comparison comparison = compare(pairs, options_.tolerance, step);
    if (!comparison.mismatches.empty()) {
      last_results_.clear();
      Investigation(runner_, records_, first_, report_).of_graph(step, std::move(comparison));
      return;
    }
    report_.within_tolerance = report_.within_tolerance || !comparison.same_bits;
    last_results_ = std::move(outcome.results);
    runner_.between(step);
  }
}

void Verification::poison() {
  if (!options_.poison) return;
  wait_for(cuda_devices_in_use());
  const std::string blind = GraphMemory::now().poison(last_results_, state_.everything());
  last_results_.clear();
  if (!blind.empty() && report_.steps == 0) {
    note(fmt::format(
        "the allocator does not tell what is free in the pools of graphs, so free memory was not filled with NaN: {}",
        blind));
  }
}

// The first error wins: what goes wrong here is a note.
void Verification::finish() {
  try {
    runner_.rewind(Side::graphed);
  } catch (const std::exception& error) {
    note(fmt::format("not everything could be put back: {}", error.what()));
  }
  report_.missing_state = runner_.missing();
  if (!runner_.unlisted_draws().empty()) {
    note(
        fmt::format("eager draws from a generator that VerifyOptions::generators does not list, and that was put back "
                    "as well: {}",
                    fmt::join(runner_.unlisted_draws(), "; ")));
  }
}

}  // namespace pianola::verification
