#include <pianola/callable/signature_cache.hpp>

#include <pianola/callable/call_signature.hpp>
#include <pianola/callable/captured_callable.hpp>
#include <pianola/callable/checked_reads.hpp>
#include <pianola/callable/function_view.hpp>
#include <pianola/callable/graph_maker.hpp>
#include <pianola/callable/nested_call.hpp>
#include <pianola/callable/signature_entry.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/core/one_call.hpp>
#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/graph/stream_order.hpp>

#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace pianola::callable {
namespace {

// Signatures of a function that are known at once, captured or not: shapes that never come back must not pile up.
constexpr std::size_t kMostSignatures = 128;
// And reasons, each with the text of its signature.
constexpr std::size_t kMostReasons = 256;

// A module that cannot be looked at cannot be captured either, which then says why.
std::unique_ptr<ModuleView> view_of(const Callable::View& module) {
  try {
    if (module) return module();
  } catch (const UsageError&) {
  }
  return std::make_unique<FunctionView>();
}

// Sees whether signatures come back. Where nearly each call has one of its own, none is ever captured, and nothing else would
// tell. To observe such calls costs many times what they take, so that it ends after a while, until a signature comes back.
class Newcomers {
 public:
  // After a call whose signature was known.
  void note_known() noexcept {
    if (strange_ > 0) --strange_;
    new_in_a_row_ = 0;
  }
  // After one whose was not. `before`: that of the call before; nullptr: it was the first.
  void note_new(const CallSignature* before, const CallSignature& now, const Call& call) {
    ++new_in_a_row_;
    if (before == nullptr || told_) return;
    const std::string change = what_changes(*before, now, call);
    if (!change.empty() && ++strange_ >= kManyStrange) {
      tell(fmt::format("nothing is captured, because nearly each of the last {} calls had a new signature; {}",
                       kManyStrange, change));
    } else if (are_all()) {
      tell(fmt::format(
          "nothing is captured, because each of the last {} calls found something on the host that no call before "
          "had found: let what changes be a tensor of the device",
          kAll));
    }
  }
  [[nodiscard]] bool are_all() const noexcept { return new_in_a_row_ >= kAll; }
  // What to tell the caller; once.
  [[nodiscard]] std::optional<std::string> take_note() { return std::exchange(note_, std::nullopt); }

 private:
  static constexpr int kManyStrange = 8;
  static constexpr int kAll = 32;

  void tell(std::string note) {
    told_ = true;
    note_ = std::move(note);
  }

  // Empty where it is neither a tensor nor an argument: somebody else tells then.
  static std::string what_changes(const CallSignature& before, const CallSignature& now, const Call& call) {
    if (before.text() != now.text()) {
      return fmt::format("the tensors change at every call, from {} to {}: pad them to a few sizes", before.text(),
                         now.text());
    }
    const std::string value = call.changed_since(before.key());
    return value.empty() ? value : value + " changes at every call: keep a number that changes in a tensor";
  }

  int strange_ = 0;
  int new_in_a_row_ = 0;
  bool told_ = false;
  std::optional<std::string> note_;
};

// While a call replays or captures. Later ones wait for its stream, which may be gone by then where it is not torch's own.
class OnStreamOfCall {
 public:
  explicit OnStreamOfCall(graph::StreamOrders& orders) : orders_(orders) {}
  OnStreamOfCall(const OnStreamOfCall&) = delete;
  OnStreamOfCall& operator=(const OnStreamOfCall&) = delete;
  ~OnStreamOfCall() {
    try {
      orders_.leave_if_they_may_end();
    } catch (const std::exception&) {  // of the device: its next call tells
    }
  }

 private:
  graph::StreamOrders& orders_;
};

// A replay of the cache runs, on the thread that has its lock. Between its parts runs code of the user's, which may call anything.
class Replaying {
 public:
  explicit Replaying(bool& is_replaying) : is_replaying_(is_replaying) { is_replaying_ = true; }
  Replaying(const Replaying&) = delete;
  Replaying& operator=(const Replaying&) = delete;
  ~Replaying() { is_replaying_ = false; }

 private:
  bool& is_replaying_;
};

void check_lanes(int branches, bool plan_memory) {
  if (!plan_memory || branches <= 1) return;
  throw UsageError(
      {.what = fmt::format("plan_memory lets blocks of a callable's graphs reuse memory in the order of the "
                           "step, which branches = {} does not keep",
                           branches),
       .fix = "leave 'branches' out, or plan_memory; or capture the step by a Graph, which plans for lanes"});
}

}  // namespace

CacheOptions::CacheOptions(GraphedOptions options, CachePolicy what_differs)
    : GraphedOptions(std::move(options)), policy(std::move(what_differs)) {
  if (!pool.empty() && pool.state()->plans_all()) plan_memory = true;
  check_at_least(1, "warmup", warmup);
  check_at_least(1, "capacity", capacity);
  check_at_least(1, "max_in_flight", max_in_flight);
  check_lanes(branches, plan_memory);
  graph::check_branches(branches, parallel);  // as each capture does, whose refusal would come late
}

struct SignatureCache::Impl {
  using Entry = std::shared_ptr<SignatureEntry>;  // shared with eager calls, which run without the lock
  struct Function {
    std::vector<Entry> entries;  // most recently called first
    std::size_t evictions = 0;
  };

  Impl(CacheOptions wanted, Callable::View view)
      : options(std::move(wanted)),
        look(std::move(view)),
        maker(options, orders),
        functions(options.policy.functions) {}

  [[nodiscard]] bool is_part_of_another(const CallInputs& inputs) const;
  [[nodiscard]] std::optional<OneCall::Scope> one_call(const char* name, bool may_nest);
  [[nodiscard]] SignatureEntry& entry_for(Key key, std::span<const at::Tensor> inputs, const Call* call = nullptr);
  [[nodiscard]] const SignatureEntry& observed_entry(std::size_t function) const;
  [[nodiscard]] std::shared_ptr<CapturedCallable> oldest_debtor(std::size_t function) const;
  [[nodiscard]] CachedGraph* graph_for(SignatureEntry& entry, Key key, const CallInputs& inputs, Call& call);
  void expect_inputs(InputBuffers::Expectation& expectation) const;
  [[nodiscard]] std::size_t input_bytes(std::span<const Function> of) const;
  std::optional<Result> replay(SignatureEntry& entry, CachedGraph& graph, const CallInputs& inputs);
  // What an eager call is observed by.
  struct Observing {
    std::shared_ptr<CheckedReads> reads = {};  // nullptr: replays check none
    GradientsBefore gradients;
  };
  void run_eagerly(SignatureEntry& entry, std::optional<Observing> observing, const CallInputs& inputs, Call& call);
  [[nodiscard]] std::optional<std::string> take_reason(SignatureEntry& entry);
  void report(const std::string& text) const;

  const CacheOptions options;
  const Callable::View look;
  graph::StreamOrders orders;
  GraphMaker maker;
  std::unique_ptr<const ModuleView> module;
  std::vector<Function> functions;
  Newcomers newcomers;
  std::unordered_set<std::string> told;  // reasons that the caller has heard
  OneCall calls;
  bool is_replaying = false;
  mutable std::recursive_mutex mutex;  // guards all of the above; taken again where a captured function asks for info()
};

// Inside a capture, or a run that is observed, the call becomes part of it. While this cache captures, its lock is held: other
// threads need not wait, and a backward pass that belongs to the capture must not.
bool SignatureCache::Impl::is_part_of_another(const CallInputs& inputs) const {
  return maker.is_making() || runs_inside_another(inputs.described());
}

// `may_nest`: the step may call the other stage, which is no second call.
std::optional<OneCall::Scope> SignatureCache::Impl::one_call(const char* name, bool may_nest) {
  using Scope = std::optional<OneCall::Scope>;
  if (!options.policy.whole_iterations || (may_nest && calls.is_ours())) return Scope();
  return Scope(std::in_place, calls, name, "a FullIteration");
}

// `call`: one that is made; nullptr where a signature is only asked for.
SignatureEntry& SignatureCache::Impl::entry_for(Key key, std::span<const at::Tensor> inputs, const Call* call) {
  if (module == nullptr) module = view_of(look);
  std::vector<Entry>& entries = functions[key.function].entries;
  const CallModes modes = CallModes::current(inputs);
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry->signature().fits(key.number, inputs, modes, *module);
  });
  if (found != entries.end()) {
    std::rotate(entries.begin(), found, found + 1);
    if (call != nullptr) newcomers.note_known();
    return *entries.front();
  }
  if (entries.size() == kMostSignatures) entries.pop_back();
  entries.insert(entries.begin(),
                 std::make_shared<SignatureEntry>(CallSignature(key.number, inputs, modes, *module), options));
  const CallSignature* before = entries.size() > 1 ? &entries[1]->signature() : nullptr;
  if (call != nullptr) newcomers.note_new(before, entries.front()->signature(), *call);
  return *entries.front();
}

const SignatureEntry& SignatureCache::Impl::observed_entry(std::size_t function) const {
  const std::vector<Entry>& known = functions[function].entries;
  const auto found = std::find_if(known.begin(), known.end(), [](const Entry& one) { return one->is_observed(); });
  if (found != known.end()) return **found;
  throw UsageError(
      {.what = fmt::format("no {} of this function was made yet, so nothing is known of it", options.policy.noun),
       .fix = "call it once before"});
}

// A new graph may need the room of the one that was not called for longest.
CachedGraph* SignatureCache::Impl::graph_for(SignatureEntry& entry, Key key, const CallInputs& inputs, Call& call) {
  const bool had_graphs = entry.holds_graphs();
  std::optional<InputBuffers::Expectation> expectation;
  if (!had_graphs && entry.is_due()) [[unlikely]]
    expect_inputs(expectation.emplace(maker.input_buffers()));
  CachedGraph* graph = entry.graph_for(inputs, call, maker, key.function);
  if (graph == nullptr || had_graphs) return graph;
  auto left = static_cast<std::ptrdiff_t>(options.capacity);
  const auto is_too_many = [&](const Entry& one) { return one->holds_graphs() && left-- <= 0; };
  functions[key.function].evictions += std::erase_if(functions[key.function].entries, is_too_many);
  return graph;
}

// The first of those that are to be captured makes room for all of them.
void SignatureCache::Impl::expect_inputs(InputBuffers::Expectation& expectation) const {
  for (const Function& function : functions) {
    for (const Entry& entry : function.entries) expectation.add(entry->expected_inputs());
  }
}

std::size_t SignatureCache::Impl::input_bytes(std::span<const Function> of) const {
  std::vector<at::Tensor> all;
  for (const Function& function : of) {
    for (const Entry& entry : function.entries) {
      const std::vector<at::Tensor> more = entry->static_inputs();
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return bytes_of_memory(all);
}

std::optional<SignatureCache::Result> SignatureCache::Impl::replay(SignatureEntry& entry, CachedGraph& graph,
                                                                   const CallInputs& inputs) {
  orders.enter(graph.device);
  try {
    if (!graph.call->set_numbers(inputs.numbers)) return std::nullopt;
    const Replaying replaying(is_replaying);
    Result result = graph.replay(inputs.copied);
    entry.note_replay();
    return result;
  } catch (const graph::OtherValue& error) {
    entry.note_other_value(error);
  } catch (const GuardError& error) {
    entry.note_refused_replay(error);
  } catch (const ReplayError& error) {
    entry.note_refused_replay(error);
  }
  return std::nullopt;
}

void SignatureCache::Impl::run_eagerly(SignatureEntry& entry, std::optional<Observing> observing,
                                       const CallInputs& inputs, Call& call) {
  std::optional<Observation> observation;
  if (observing) {
    HostEffects effects;
    EagerRun run(
        inputs.copied, [&] { effects = call.run_observed(); }, std::make_shared<HostParts>(),
        std::make_shared<graph::NumberUses>(), std::make_shared<graph::Islands>(), std::move(observing->reads),
        options.memory_limit != 0 || options.plan_memory);
    observation.emplace(std::move(run), effects, inputs.described(), call.eager_results(), observing->gradients);
  } else {
    call.run_eagerly();
  }
  std::unique_lock lock(mutex);
  entry.note_eager_call(std::move(observation), inputs.copied, call);
  const std::array texts{take_reason(entry), entry.take_note(), newcomers.take_note()};
  lock.unlock();
  for (const std::optional<std::string>& text : texts) {
    if (text) report(*text);
  }
}

// A function that finds something else at each call is in as many states, which stay eager for one reason: it is told once.
std::optional<std::string> SignatureCache::Impl::take_reason(SignatureEntry& entry) {
  std::optional<std::string> reason = entry.take_reason();
  if (!reason) return reason;
  if (told.size() == kMostReasons) told.clear();
  return told.insert(*reason).second ? reason : std::nullopt;
}

void SignatureCache::Impl::report(const std::string& text) const {
  if (options.on_fallback) return options.on_fallback(text);
  TORCH_WARN(options.policy.owner, ": ", text);
}

SignatureCache::SignatureCache(CacheOptions options, Callable::View module)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(module))) {}

SignatureCache::~SignatureCache() = default;

std::optional<SignatureCache::Result> SignatureCache::run(Key key, const CallInputs& inputs, Call& call) {
  if (impl_->is_part_of_another(inputs)) [[unlikely]] {
    call.run_eagerly();
    return std::nullopt;
  }
  const auto one_call = impl_->one_call("an iteration", /*may_nest=*/true);
  if (impl_->options.policy.check_call != nullptr) impl_->options.policy.check_call();
  std::unique_lock lock(impl_->mutex);
  if (impl_->is_replaying)
      [[unlikely]] {  // a part of the step that stays eager calls the function: its call is part of that
    lock.unlock();
    call.run_eagerly();
    return std::nullopt;
  }
  SignatureEntry& entry = impl_->entry_for(key, inputs.described(), &call);
  {
    const OnStreamOfCall on_stream(impl_->orders);
    if (CachedGraph* graph = impl_->graph_for(entry, key, inputs, call)) {
      if (auto result = impl_->replay(entry, *graph, inputs)) return result;
    }
  }
  const Impl::Entry kept = entry.shared_from_this();
  std::optional<Impl::Observing> observing;
  if (entry.wants_observation() && !impl_->newcomers.are_all()) {
    observing.emplace(Impl::Observing{.gradients = entry.gradients_before()});
    if (entry.checks_reads()) observing->reads = std::make_shared<CheckedReads>(entry.device_of(inputs.described()));
  }
  lock.unlock();
  impl_->run_eagerly(entry, std::move(observing), inputs, call);
  return std::nullopt;
}

bool SignatureCache::is_due(Key key, const CallInputs& inputs) {
  if (impl_->is_part_of_another(inputs)) return false;
  const auto one_call = impl_->one_call("an iteration", /*may_nest=*/true);
  const std::lock_guard lock(impl_->mutex);
  return !impl_->is_replaying && impl_->entry_for(key, inputs.described()).is_due();
}

void SignatureCache::capture(Key key, const CallInputs& inputs, Call& call) {
  const auto one_call = impl_->one_call("a capture", /*may_nest=*/false);
  if (const GraphPoolRef& pool = impl_->options.pool; !pool.empty()) pool.state()->check_awake("capture()");
  const std::lock_guard lock(impl_->mutex);
  SignatureEntry& entry = impl_->entry_for(key, inputs.described());
  if (entry.holds_graphs() || entry.stays_eager()) return;
  if (!entry.is_due()) entry.adopt(impl_->observed_entry(key.function));
  const OnStreamOfCall on_stream(impl_->orders);
  const GraphMaker::Ahead ahead(impl_->maker);
  (void)impl_->graph_for(entry, key, inputs, call);
}

void SignatureCache::refuse(Key key, const CallInputs& inputs, std::string reason) {
  if (impl_->options.policy.strict) {
    throw UsageError({.what = fmt::format("the {} cannot stay captured: {}", impl_->options.policy.noun, reason),
                      .fix = "keep what changes in tensors that the step reads, or set eager_fallback"});
  }
  const auto one_call = impl_->one_call("an iteration", /*may_nest=*/true);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_replaying) return;  // perhaps this very graph; the call is eager all the same
  impl_->entry_for(key, inputs.described()).stay_eager(std::move(reason));
}

std::shared_ptr<CapturedCallable> SignatureCache::Impl::oldest_debtor(std::size_t function) const {
  const std::lock_guard lock(mutex);
  std::shared_ptr<CapturedCallable> oldest;
  for (const Entry& entry : functions[function].entries) {
    auto one = entry->oldest_debtor();
    if (one != nullptr && (oldest == nullptr || one->oldest_debt() < oldest->oldest_debt())) oldest = std::move(one);
  }
  return oldest;
}

// Without the lock: hooks of weights may call the function.
bool SignatureCache::backward_weights(std::size_t function) {
  const auto debtor = impl_->oldest_debtor(function);
  return debtor != nullptr && debtor->backward_weights();
}

std::uint64_t SignatureCache::oldest_debt(std::size_t function) const {
  const auto debtor = impl_->oldest_debtor(function);
  return debtor == nullptr ? 0 : debtor->oldest_debt();
}

void SignatureCache::reset(std::size_t function) {
  const auto one_call = impl_->one_call("reset()", /*may_nest=*/false);
  std::vector<Impl::Entry> dropped;  // without the lock, as backward_weights()
  const std::lock_guard lock(impl_->mutex);
  if (impl_->maker.is_making()) {
    throw UsageError(
        {.what = "reset() was called by a function while it is captured", .fix = "call it after the call"});
  }
  if (impl_->is_replaying) {
    throw UsageError({.what = "reset() was called by a part that stays eager, while a replay of its function runs",
                      .fix = "call it after the call"});
  }
  dropped.swap(impl_->functions[function].entries);
  impl_->told.clear();
}

GraphedInfo SignatureCache::info(std::size_t function) const {
  const std::lock_guard lock(impl_->mutex);
  GraphedInfo info{.signatures = {}, .evictions = impl_->functions[function].evictions};
  for (const auto& entry : impl_->functions[function].entries) info.signatures.push_back(entry->info());
  info.input_bytes = impl_->input_bytes({&impl_->functions[function], 1});
  return info;
}

std::size_t SignatureCache::input_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->input_bytes(impl_->functions);
}

std::size_t SignatureCache::pool_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->maker.pool_bytes();
}

}  // namespace pianola::callable
