#include <pianola/training/iteration_entry.hpp>

#include <pianola/callable/graph_maker.hpp>
#include <pianola/callable/output_structure.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

namespace pianola::training {
namespace {

std::vector<c10::IValue> values_of(std::span<const at::Tensor> tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace

IterationEntry::IterationEntry(callable::CallSignature signature, const FullIterationOptions& options)
    : signature_(std::move(signature)), options_(options), warm_up_(options.warmup) {
  if (!signature_.obstacle()) return;
  if (!options_.eager_fallback) throw UsageError(*signature_.obstacle());
  stay_eager(Error(*signature_.obstacle()).what());
}

// Where tensors were replaced, what the step does may have changed with them: the last warm-up iteration is made again.
// Gradients in another state than those that were captured only need another capture.
void IterationEntry::drop_stale() {
  if (graph_ == nullptr) return;
  if (graph_->is_stale()) [[unlikely]] {
    count_recapture(graph_->why_stale());
    warm_up_.start_again();
  } else if (!graph_->is_free()) [[unlikely]] {
    count_recapture("gradients are in another state than when it was captured: set, or kept, from outside");
  }
}

void IterationEntry::count_recapture(const std::string& why) {
  graph_.reset();
  reason_ = why;
  if (recaptures_.note()) return;
  const std::string reason =
      fmt::format("it was captured {} times in a row, and is stale again: {}", recaptures_.in_a_row(), why);
  recaptures_.start_over();
  if (!options_.eager_fallback) {
    throw UsageError({.what = "the iteration cannot stay captured: " + reason,
                      .fix = "keep what it uses in place, or set eager_fallback"});
  }
  stay_eager(reason);
}

bool IterationEntry::is_due() const {
  if (graph_ != nullptr || is_eager_) return false;
  return warm_up_.is_over() || (warm_up_.calls() >= options_.warmup && !warm_up_.obstacle().empty());
}

void IterationEntry::adopt(const IterationEntry& other) {
  warm_up_.adopt(other.warm_up_);
  adopted_ = true;
}

bool IterationEntry::capture(const IterationBank::Inputs& inputs, callable::BankCall& call, const GraphPoolRef& pool) {
  *has_run_ = false;
  warm_up_.look_again(call);
  if (!warm_up_.obstacle().empty()) {
    throw UsageError({.what = "the iteration cannot be captured: " + warm_up_.obstacle()});
  }
  if (!warm_up_.is_over()) return false;
  const callable::Observation& last = warm_up_.last();
  callable::Capturable capturable = call.to_capture();
  capturable.callable = callable::noting_runs(capturable.callable, has_run_);
  auto graph = std::make_shared<callable::StepGraph>(last.device(), inputs.copied, options_.output);
  const auto step = [&](std::span<const at::Tensor> static_inputs) {
    return callable::leaves_of(capturable.callable(values_of(static_inputs)));
  };
  ParallelOptions parallel = options_.parallel;
  parallel.warmed_up = true;                                // by the iterations that were made
  const CaptureOptions capture{.warmup = adopted_ ? 1 : 0,  // kernels may be chosen by shape
                               .pool = pool,
                               .generators = options_.generators,
                               .branches = options_.branches,
                               .parallel = parallel,
                               .check = options_.check,
                               .names = options_.names,
                               .mode = options_.mode};
  try {
    graph->capture(step, last.leaves(), capture, [&](const trace::OperationLog& log) {
      if (!adopted_) last.check_capture(log, options_.accept_capture_path);  // else that of other shapes
    });
  } catch (const callable::OtherPath&) {
    if (!warm_up_.note_other_path()) throw;
    return false;
  }
  graph_ = std::move(graph);
  structure_ = std::move(capturable.structure);
  warm_up_.forget_places();
  return true;
}

std::string IterationEntry::note_of_second_run() const { return callable::note_of_second_run(*has_run_); }

void IterationEntry::run_eagerly(const IterationBank::Inputs& inputs, callable::BankCall& call) {
  if (is_eager_ || is_due()) {
    call.run_eagerly();
    ++eager_calls_;
    return;
  }
  warm_up_.look_again(call);
  callable::HostEffects effects;
  callable::ObservedRun run(inputs.copied, [&] { effects = call.run_observed(); });
  ++eager_calls_;
  warm_up_.note(callable::Observation(std::move(run), effects, inputs.described(), call.eager_results()), call);
}

void IterationEntry::stay_eager(std::string reason) {
  reason_ = std::move(reason);
  is_eager_ = true;
  graph_.reset();
  warm_up_.start_again();
}

std::optional<std::string> IterationEntry::take_reason() {
  if (!is_eager_ || std::exchange(reported_, true)) return std::nullopt;
  return fmt::format("iterations with {} stay eager: {}", signature_.text(), reason_);
}

IterationInfo IterationEntry::info(Stage stage) const {
  IterationInfo info{.stage = stage,
                     .signature = signature_.text(),
                     .state = is_eager_           ? GraphedState::eager
                              : graph_ == nullptr ? GraphedState::warming_up
                                                  : GraphedState::captured,
                     .eager_calls = eager_calls_,
                     .replays = recaptures_.replays(),
                     .recaptures = recaptures_.count(),
                     .reason = reason_};
  if (graph_ != nullptr) info.branches = graph_->graph().info().branches;
  return info;
}

}  // namespace pianola::training
