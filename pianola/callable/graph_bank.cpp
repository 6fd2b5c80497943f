#include <pianola/callable/graph_bank.hpp>

#include <pianola/callable/call_signature.hpp>
#include <pianola/callable/function_view.hpp>
#include <pianola/callable/graph_maker.hpp>
#include <pianola/callable/nested_call.hpp>
#include <pianola/callable/newcomers.hpp>
#include <pianola/callable/signature_entry.hpp>
#include <pianola/callable/told_reasons.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/stream_order.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <utility>

namespace pianola::callable {
namespace {

// Signatures that are known at once, captured or not: shapes that never come back must not pile up.
constexpr std::size_t kMostSignatures = 128;

GraphedOptions checked(GraphedOptions options) {
  const auto check = [](const char* name, int value, int least) {
    if (value < least) throw UsageError({.what = fmt::format("{} must be {} or more, got {}", name, least, value)});
  };
  check("warmup", options.warmup, 1);
  check("capacity", options.capacity, 1);
  check("max_in_flight", options.max_in_flight, 1);
  // As Graph::capture does, whose refusal would come late and keep the calls eager.
  check("branches", options.branches, 0);
  check("parallel.workspaces", options.parallel.workspaces, 0);
  check("parallel.reuse_delay", options.parallel.reuse_delay, 0);
  return options;
}

// A module that cannot be looked at cannot be captured either, which then says why.
std::unique_ptr<ModuleView> view_of(const Callable& callable) {
  try {
    return callable.view();
  } catch (const UsageError&) {
    return std::make_unique<FunctionView>();
  }
}

}  // namespace

struct GraphBank::Impl {
  using Entry = std::shared_ptr<SignatureEntry>;  // shared with eager calls, which run without the lock

  Impl(GraphedOptions wanted, const Callable& callable)
      : options(checked(std::move(wanted))), original(callable), maker(options) {}

  [[nodiscard]] bool must_stay_eager(std::span<const at::Tensor> inputs) const;
  [[nodiscard]] const Entry& entry_for(std::int64_t key, std::span<const at::Tensor> inputs,
                                       const BankCall* call = nullptr);
  std::optional<Result> replay(SignatureEntry& entry, std::span<const at::Tensor> inputs, BankCall& call);
  void make_room();
  void run_eagerly(SignatureEntry& entry, bool observe, std::span<const at::Tensor> inputs, BankCall& call);
  void report(const std::string& reason) const;

  const GraphedOptions options;
  const Callable original;
  GraphMaker maker;
  std::unique_ptr<const ModuleView> module;  // made by the first call, which may come long after the bank
  std::vector<Entry> entries;                // most recently called first
  graph::StreamOrder order;
  Newcomers newcomers;
  ToldReasons told;
  std::size_t evictions = 0;
  mutable std::mutex mutex;  // guards all of the above but the options
};

// Inside a capture the call becomes part of it. While this bank captures, its lock is held: other threads need not
// wait, and a backward pass that belongs to the capture must not.
bool GraphBank::Impl::must_stay_eager(std::span<const at::Tensor> inputs) const {
  return maker.is_making() || runs_inside_another(inputs);
}

const GraphBank::Impl::Entry& GraphBank::Impl::entry_for(std::int64_t key, std::span<const at::Tensor> inputs,
                                                         const BankCall* call) {
  if (module == nullptr) module = view_of(original);
  const CallModes modes = CallModes::current(inputs);
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry->signature().fits(key, inputs, modes, *module);
  });
  if (found != entries.end()) {
    std::rotate(entries.begin(), found, found + 1);
    if (call != nullptr) newcomers.note_known();
  } else {
    if (entries.size() == kMostSignatures) entries.pop_back();
    entries.insert(entries.begin(),
                   std::make_shared<SignatureEntry>(CallSignature(key, inputs, modes, *module), options));
    const CallSignature* before = entries.size() > 1 ? &entries[1]->signature() : nullptr;
    if (call != nullptr) newcomers.note_new(before, entries.front()->signature(), *call);
  }
  return entries.front();
}

std::optional<GraphBank::Result> GraphBank::Impl::replay(SignatureEntry& entry, std::span<const at::Tensor> inputs,
                                                         BankCall& call) {
  const bool had_graphs = entry.holds_graphs();
  BankGraph* graph = entry.graph_for(inputs, call, maker);
  if (graph == nullptr) return std::nullopt;
  if (!had_graphs) make_room();
  order.enter(graph->device);
  try {
    Result result{.leaves = graph->call->replay(inputs), .structure = graph->structure};
    entry.note_replay();
    return result;
  } catch (const GuardError& error) {
    entry.note_stale(error.what());
  } catch (const ReplayError& error) {
    entry.note_stale(error.what());
  }
  return std::nullopt;
}

void GraphBank::Impl::make_room() {
  auto left = static_cast<std::ptrdiff_t>(options.capacity);
  const auto is_too_many = [&](const Entry& entry) { return entry->holds_graphs() && left-- <= 0; };
  evictions += std::erase_if(entries, is_too_many);
}

void GraphBank::Impl::run_eagerly(SignatureEntry& entry, bool observe, std::span<const at::Tensor> inputs,
                                  BankCall& call) {
  std::optional<Observation> observation;
  if (observe) {
    HostEffects effects;
    ObservedRun run(inputs, [&] { effects = call.run_observed(); });
    observation.emplace(std::move(run), effects, inputs, call.eager_results());
  } else {
    call.run_eagerly();
  }
  std::unique_lock lock(mutex);
  entry.note_eager_call(std::move(observation), call);
  const std::optional<std::string> reason = told.once(entry.take_reason());
  const std::array notes{entry.take_note(), newcomers.take_note()};
  lock.unlock();
  if (reason) report(*reason);
  for (const std::optional<std::string>& note : notes) {
    if (note) report(*note);
  }
}

void GraphBank::Impl::report(const std::string& reason) const {
  if (options.on_fallback) return options.on_fallback(reason);
  TORCH_WARN("pianola::graphed: ", reason);
}

GraphBank::GraphBank(GraphedOptions options, const Callable& original)
    : impl_(std::make_unique<Impl>(std::move(options), original)) {}

GraphBank::~GraphBank() = default;

std::optional<GraphBank::Result> GraphBank::run(std::int64_t key, std::span<const at::Tensor> inputs, BankCall& call) {
  if (impl_->must_stay_eager(inputs)) {
    call.run_eagerly();
    return std::nullopt;
  }
  std::unique_lock lock(impl_->mutex);
  const Impl::Entry& found = impl_->entry_for(key, inputs, &call);
  if (auto result = impl_->replay(*found, inputs, call)) return result;
  const Impl::Entry entry = found;
  const bool observe = entry->wants_observation();
  lock.unlock();
  impl_->run_eagerly(*entry, observe, inputs, call);
  return std::nullopt;
}

void GraphBank::refuse(std::int64_t key, std::span<const at::Tensor> inputs, std::string reason) {
  const std::lock_guard lock(impl_->mutex);
  impl_->entry_for(key, inputs)->refuse(std::move(reason));
}

void GraphBank::reset() {
  const std::lock_guard lock(impl_->mutex);
  impl_->entries.clear();
  impl_->told.forget();
}

GraphedInfo GraphBank::info() const {
  const std::lock_guard lock(impl_->mutex);
  GraphedInfo info;
  for (const auto& entry : impl_->entries) info.signatures.push_back(entry->info());
  info.evictions = impl_->evictions;
  return info;
}

}  // namespace pianola::callable
