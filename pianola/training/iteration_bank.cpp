#include <pianola/training/iteration_bank.hpp>

#include <pianola/callable/function_view.hpp>
#include <pianola/callable/nested_call.hpp>
#include <pianola/callable/newcomers.hpp>
#include <pianola/callable/told_reasons.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/one_call.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/stream_order.hpp>
#include <pianola/training/iteration_entry.hpp>
#include <pianola/training/rng_tracker.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

namespace pianola::training {
namespace {

// Signatures of a stage that are known at once, captured or not: shapes that never come back must not pile up.
constexpr std::size_t kMostSignatures = 128;

FullIterationOptions checked(FullIterationOptions options) {
  const auto check = [](const char* name, int value, int least) {
    if (value < least) throw UsageError({.what = fmt::format("{} must be {} or more, got {}", name, least, value)});
  };
  check("warmup", options.warmup, 1);
  check("capacity", options.capacity, 1);
  check("branches", options.branches, 0);
  check("parallel.workspaces", options.parallel.workspaces, 0);
  check("parallel.reuse_delay", options.parallel.reuse_delay, 0);
  return options;
}

// A graph draws from the streams that it was captured with, whatever is forked around its replay.
[[noreturn]] void refuse_fork() {
  throw UsageError({.what =
                        "an iteration was called while a random stream is forked: its graph would draw from the stream "
                        "that it was captured with",
                    .fix = "fork inside the step"});
}

}  // namespace

struct IterationBank::Impl {
  using Entries = std::vector<std::unique_ptr<IterationEntry>>;  // most recently called first

  explicit Impl(FullIterationOptions wanted) : options(checked(std::move(wanted))), pool(options.pool) {}

  [[nodiscard]] Entries& entries(Stage stage) { return stages[static_cast<std::size_t>(stage)]; }
  [[nodiscard]] IterationEntry& entry_for(Stage stage, std::int64_t key, std::span<const at::Tensor> inputs,
                                          const callable::BankCall* call = nullptr);
  void capture(Stage stage, IterationEntry& entry, const Inputs& inputs, callable::BankCall& call);
  void make_room(Stage stage);
  std::optional<Result> replay(IterationEntry& entry, const Inputs& inputs);
  void run_eagerly(IterationEntry& entry, const Inputs& inputs, callable::BankCall& call);
  void report(const std::string& reason) const;

  const FullIterationOptions options;
  GraphPoolRef pool;
  std::array<Entries, 2> stages;
  callable::FunctionView module;
  graph::StreamOrder order;
  std::array<bool, 2> has_captured = {};  // stages with memory in the pool; see Note [Memory of iterations]
  callable::Newcomers newcomers;
  callable::ToldReasons told;
  std::size_t evictions = 0;
  bool is_capturing = false;
  OneCall calls;
};

IterationEntry& IterationBank::Impl::entry_for(Stage stage, std::int64_t key, std::span<const at::Tensor> inputs,
                                               const callable::BankCall* call) {
  Entries& known = entries(stage);
  const auto modes = callable::CallModes::current(inputs);
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& entry) {
    return entry->signature().fits(key, inputs, modes, module);
  });
  if (found != known.end()) {
    std::rotate(known.begin(), found, found + 1);
    if (call != nullptr) newcomers.note_known();
  } else {
    if (known.size() == kMostSignatures) known.pop_back();
    callable::CallSignature signature(key, inputs, modes, module);
    known.insert(known.begin(), std::make_unique<IterationEntry>(std::move(signature), options));
    const callable::CallSignature* before = known.size() > 1 ? &known[1]->signature() : nullptr;
    if (call != nullptr) newcomers.note_new(before, known.front()->signature(), *call);
  }
  return *known.front();
}

void IterationBank::Impl::capture(Stage stage, IterationEntry& entry, const Inputs& inputs, callable::BankCall& call) {
  if (pool.empty()) pool = GraphPoolRef(GraphPool(entry.device()));
  const auto index = static_cast<std::size_t>(stage);
  const bool shares = has_captured[1 - index] || !options.pool.empty();
  const std::shared_ptr<void> reservation = shares ? pool.state()->reserve_used_memory() : nullptr;
  is_capturing = true;
  try {
    if (entry.capture(inputs, call, pool)) has_captured[index] = true;
    is_capturing = false;
  } catch (const std::exception& error) {
    is_capturing = false;
    if (!options.eager_fallback || call.was_interrupted()) throw;
    entry.stay_eager(error.what() + entry.note_of_second_run());
  } catch (...) {
    is_capturing = false;
    throw;
  }
  make_room(stage);
}

void IterationBank::Impl::make_room(Stage stage) {
  auto left = static_cast<std::ptrdiff_t>(options.capacity);
  evictions +=
      std::erase_if(entries(stage), [&](const auto& entry) { return entry->graph() != nullptr && left-- <= 0; });
}

std::optional<IterationBank::Result> IterationBank::Impl::replay(IterationEntry& entry, const Inputs& inputs) {
  order.enter(entry.graph()->graph().device());
  try {
    entry.graph()->launch(inputs.copied);
  } catch (const GuardError& error) {
    if (!options.eager_fallback) throw;
    entry.stay_eager(error.what());
    return std::nullopt;
  } catch (const ReplayError& error) {
    if (!options.eager_fallback) throw;
    entry.stay_eager(error.what());
    return std::nullopt;
  }
  entry.note_replay();
  return Result{.structure = entry.structure(), .graph = entry.graph(), .inputs = inputs.copied};
}

void IterationBank::Impl::run_eagerly(IterationEntry& entry, const Inputs& inputs, callable::BankCall& call) {
  entry.run_eagerly(inputs, call);
  if (const std::optional<std::string> reason = told.once(entry.take_reason())) report(*reason);
  if (const std::optional<std::string> note = newcomers.take_note()) report(*note);
}

void IterationBank::Impl::report(const std::string& reason) const {
  if (options.on_fallback) return options.on_fallback(reason);
  TORCH_WARN("pianola::FullIteration: ", reason);
}

bool IterationBank::Result::is_static() const noexcept { return graph->has_static_results(); }
std::vector<at::Tensor> IterationBank::Result::leaves() const { return graph->results(inputs); }

IterationBank::IterationBank(FullIterationOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
IterationBank::~IterationBank() = default;

// Inside a capture the call becomes part of it.
std::optional<IterationBank::Result> IterationBank::run(Stage stage, std::int64_t key, const Inputs& inputs,
                                                        callable::BankCall& call) {
  if (impl_->is_capturing || is_inside_another(inputs)) [[unlikely]] {
    call.run_eagerly();
    return std::nullopt;
  }
  std::optional<OneCall::Scope> one_call;  // unless the step calls another stage
  if (!impl_->calls.is_ours()) one_call.emplace(impl_->calls, "an iteration", "a FullIteration");
  if (RngTracker::forks_open() != 0) [[unlikely]]
    refuse_fork();
  IterationEntry& entry = impl_->entry_for(stage, key, inputs.described(), &call);
  entry.drop_stale();
  if (entry.is_due()) impl_->capture(stage, entry, inputs, call);
  if (entry.graph() != nullptr) {
    if (auto result = impl_->replay(entry, inputs)) return result;
  }
  impl_->run_eagerly(entry, inputs, call);
  return std::nullopt;
}

bool IterationBank::is_inside_another(const Inputs& inputs) {
  return callable::runs_inside_another(inputs.described());
}

void IterationBank::follow(Stage stage) const {
  if (impl_->options.after_iteration) impl_->options.after_iteration(stage);
}

bool IterationBank::is_due(Stage stage, std::int64_t key, const Inputs& inputs) {
  if (impl_->is_capturing || is_inside_another(inputs)) return false;
  std::optional<OneCall::Scope> one_call;
  if (!impl_->calls.is_ours()) one_call.emplace(impl_->calls, "an iteration", "a FullIteration");
  return impl_->entry_for(stage, key, inputs.described()).is_due();
}

void IterationBank::capture(Stage stage, std::int64_t key, const Inputs& inputs, callable::BankCall& call) {
  const OneCall::Scope one_call(impl_->calls, "a capture", "a FullIteration");
  IterationEntry& entry = impl_->entry_for(stage, key, inputs.described());
  if (entry.graph() != nullptr || entry.stays_eager()) return;
  if (!entry.is_due()) {
    const Impl::Entries& known = impl_->entries(stage);
    const auto observed = std::find_if(known.begin(), known.end(), [](const auto& one) { return one->is_observed(); });
    if (observed == known.end()) {
      throw UsageError(
          {.what = fmt::format("no {} iteration was made yet, so that nothing is known of it", in_words(stage)),
           .fix = "call it once before"});
    }
    entry.adopt(**observed);
  }
  impl_->capture(stage, entry, inputs, call);
}

void IterationBank::refuse(Stage stage, std::int64_t key, const Inputs& inputs, const std::string& reason) {
  if (!impl_->options.eager_fallback) {
    throw UsageError({.what = "the iteration cannot stay captured: " + reason,
                      .fix = "keep what changes in tensors that the step reads, or set eager_fallback"});
  }
  std::optional<OneCall::Scope> one_call;
  if (!impl_->calls.is_ours()) one_call.emplace(impl_->calls, "an iteration", "a FullIteration");
  impl_->entry_for(stage, key, inputs.described()).stay_eager(reason);
}

void IterationBank::reset(Stage stage) {
  const OneCall::Scope one_call(impl_->calls, "reset()", "a FullIteration");
  impl_->entries(stage).clear();
  impl_->told.forget();
}

FullIterationInfo IterationBank::info() const {
  FullIterationInfo info;
  info.evictions = impl_->evictions;
  for (const Stage stage : {Stage::training, Stage::validation}) {
    for (const auto& entry : impl_->entries(stage)) info.signatures.push_back(entry->info(stage));
  }
  if (!impl_->pool.empty()) info.pool_bytes = impl_->pool.state()->bytes();
  return info;
}

const FullIterationOptions& IterationBank::options() const noexcept { return impl_->options; }

}  // namespace pianola::training
