#include <pianola/training/iteration_entry.hpp>

#include <pianola/callable/output_structure.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

namespace pianola::training {
namespace {

// Beyond that an iteration changes as fast as it is captured.
constexpr std::size_t kMostRecaptures = 8;
// A graph that was replayed so often was worth its capture.
constexpr std::size_t kManyReplays = 16;

std::vector<c10::IValue> values_of(std::span<const at::Tensor> tensors) { return {tensors.begin(), tensors.end()}; }

}  // namespace

IterationEntry::IterationEntry(callable::CallSignature signature, const FullIterationOptions& options)
    : signature_(std::move(signature)), options_(options) {
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
    observation_.reset();
  } else if (!graph_->is_free()) [[unlikely]] {
    count_recapture("gradients are in another state than when it was captured: set, or kept, from outside");
  }
}

void IterationEntry::count_recapture(const std::string& why) {
  graph_.reset();
  reason_ = why;
  ++recaptures_;
  recaptures_in_a_row_ = replays_since_capture_ < kManyReplays ? recaptures_in_a_row_ + 1 : 1;
  replays_since_capture_ = 0;
  if (recaptures_in_a_row_ <= kMostRecaptures) return;
  recaptures_in_a_row_ = 0;
  const std::string reason =
      fmt::format("it was captured {} times in a row, and is stale again: {}", kMostRecaptures + 1, why);
  if (!options_.eager_fallback) {
    throw UsageError({.what = "the iteration cannot stay captured: " + reason,
                      .fix = "keep what it uses in place, or set eager_fallback"});
  }
  stay_eager(reason);
}

void IterationEntry::note_replay() noexcept {
  ++replays_;
  ++replays_since_capture_;
}

bool IterationEntry::is_due() const noexcept {
  return graph_ == nullptr && !is_eager_ && observation_ && warmup_calls_ >= options_.warmup;
}

void IterationEntry::adopt(const IterationEntry& other) {
  observation_ = other.observation_;
  warmup_calls_ = options_.warmup;
  adopted_ = true;
}

void IterationEntry::capture(const IterationBank::Inputs& inputs, callable::BankCall& call, const GraphPoolRef& pool) {
  if (!observation_->obstacle().empty()) {
    throw UsageError({.what = "the iteration cannot be captured: " + observation_->obstacle()});
  }
  callable::Capturable capturable = call.to_capture();
  auto graph = std::make_shared<callable::StepGraph>(observation_->device(), inputs.copied, options_.output);
  const auto step = [&](std::span<const at::Tensor> static_inputs) {
    return callable::leaves_of(capturable.callable(values_of(static_inputs)));
  };
  ParallelOptions parallel = options_.parallel;
  parallel.warmed_up = true;  // by the iterations that were made
  graph->capture(step, observation_->leaves(),
                 {.warmup = adopted_ ? 1 : 0,  // kernels may be chosen by shape
                  .pool = pool,
                  .generators = options_.generators,
                  .branches = options_.branches,
                  .parallel = parallel,
                  .check = options_.check,
                  .names = options_.names,
                  .mode = options_.mode},
                 [&](const callable::NumberLog& numbers) {
                   if (!adopted_) observation_->check_numbers(numbers);  // else those of other shapes
                 });
  graph_ = std::move(graph);
  structure_ = std::move(capturable.structure);
}

bool IterationEntry::wants_observation() const noexcept {
  return !is_eager_ && !is_due() && warmup_calls_ + 2 >= options_.warmup;
}

void IterationEntry::run_eagerly(const IterationBank::Inputs& inputs, callable::BankCall& call) {
  std::optional<callable::Observation> observed;
  if (wants_observation()) {
    callable::ObservedRun run(inputs.copied, [&] { (void)call.run_observed(); });
    observed.emplace(std::move(run), inputs.described(), call.eager_results());
  } else {
    call.run_eagerly();
  }
  ++eager_calls_;
  ++warmup_calls_;
  if (!observed) return;
  if (observation_) observed->compare(*observation_);
  observation_ = std::move(observed);
}

void IterationEntry::stay_eager(std::string reason) {
  reason_ = std::move(reason);
  is_eager_ = true;
  graph_.reset();
  observation_.reset();
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
                     .replays = replays_,
                     .recaptures = recaptures_,
                     .reason = reason_};
  if (graph_ != nullptr) info.branches = graph_->graph().info().branches;
  return info;
}

}  // namespace pianola::training
