#include <pianola/callable/signature_entry.hpp>

#include <pianola/callable/captured_callable.hpp>

#include <pianola/callable/step_graph.hpp>
#include <pianola/graph/pool_state.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace pianola::callable {
namespace {

// In a row: the next iterations of DistributedDataParallel are like all others.
constexpr int kMostIllTimed = 2;

// In what a replay saves: what a miss costs besides the eager call that it leads to, and what a new capture does.
constexpr std::size_t kCostOfMiss = 1;
constexpr std::size_t kCostOfCapture = 200;
constexpr std::size_t kMostLost = kCostOfCapture + 8 * kCostOfMiss;
constexpr int kMissesToLookAgain = 6;  // in a row
constexpr int kMostTries = 2;

bool is_of_one_iteration(const std::exception& error) {
  const auto* const refused = dynamic_cast<const CaptureError*>(&error);
  return refused != nullptr && refused->diagnosis().rule == "PG1104";
}

}  // namespace

SignatureEntry::SignatureEntry(CallSignature signature, const CacheOptions& options)
    : signature_(std::move(signature)), options_(options), warm_up_(options.warmup) {
  if (!signature_.obstacle()) return;
  if (options_.policy.strict) throw UsageError(*signature_.obstacle());
  stay_eager(Error(*signature_.obstacle()).what());
}

CachedGraph* SignatureEntry::graph_for(const CallInputs& inputs, Call& call, GraphMaker& maker, std::size_t function) {
  drop_stale();
  for (CachedGraph& graph : graphs_) {
    if (graph.call->is_free()) return &graph;
  }
  if (is_eager_) return nullptr;
  warm_up_.look_again(call);
  heed_obstacle();
  if (!may_capture()) return nullptr;
  const bool has_backward_graph = !is_step() && warm_up_.last().kind() == GraphedKind::autograd;
  if (has_backward_graph && graphs_.empty() && warm_up_.awaits_backward()) return nullptr;
  return capture(inputs, call, maker, function);
}

void SignatureEntry::drop_stale() {
  const auto stale = std::find_if(graphs_.begin(), graphs_.end(), [](const auto& one) { return one.call->is_stale(); });
  if (stale == graphs_.end()) [[likely]]
    return;
  refuse_debts();
  note_stale(stale->call->why_stale());
}

// All of a signature's graphs read the same things: where one is stale, so are the others. And what the function does
// may have changed with them, so that the last warm-up call has to be made again.
void SignatureEntry::note_stale(const std::string& why) {
  graphs_.clear();
  warm_up_.start_again();
  note_recapture(why);
}

void SignatureEntry::note_refused_replay(const Error& error) {
  if (options_.policy.strict) throw;
  note_stale(error.what());
}

// Where the value stays another one, the next calls show the way that it leads.
void SignatureEntry::note_other_value(const Error& error) {
  ++misses_;
  const bool looks_again = ++misses_in_a_row_ >= kMissesToLookAgain;
  lost_ += looks_again ? kCostOfCapture : kCostOfMiss;
  if (lost_ > recaptures_.replays() + kMostLost) {
    graphs_.clear();
    return give_up_checks(
        fmt::format("in {} of {} calls a value that it read was another one than when it was captured", misses_,
                    misses_ + recaptures_.replays()));
  }
  if (!looks_again) return;
  misses_in_a_row_ = 0;
  note_stale(error.what());
}

c10::Device SignatureEntry::device_of(std::span<const at::Tensor> inputs) const {
  if (warm_up_.has_last()) return warm_up_.last().device();
  const auto other = std::ranges::find_if(inputs, [](const at::Tensor& input) { return !input.device().is_cpu(); });
  return other == inputs.end() ? c10::Device(c10::kCPU) : other->device();
}

// The call in which a read is seen first is like a first one: its reads were not noted.
void SignatureEntry::look_for_reads(const Observation& observed) {
  if (reads_values_ || options_.islands != IslandPolicy::automatic || !observed.reads_values()) return;
  reads_values_ = true;
  if (observed.communicates()) no_checks_ = "the step works with other ranks, which may read other values";
  if (observed.runs_compiled()) no_checks_ = "the step runs code that torch.compile made";
  never_checks_ = !no_checks_.empty();
  if (checks_reads()) warm_up_.start_again();
}

void SignatureEntry::give_up_checks(std::string why) {
  no_checks_ = std::move(why);
  warm_up_.start_again();
}

void SignatureEntry::note_recapture(const std::string& why) {
  reason_ = why;
  if (recaptures_.note()) return;
  std::string reason = fmt::format("it was captured {} times in a row, and is stale again: {}",
                                   recaptures_.in_a_row() + graphs_.size(), why);
  if (!options_.policy.strict) return stay_eager(std::move(reason));
  recaptures_.start_over();
  throw UsageError({.what = fmt::format("the {} cannot stay captured: {}", options_.policy.noun, reason),
                    .fix = "keep what it uses in place, or set eager_fallback"});
}

// A strict cache lets the warm-up be made, and throws in place of the capture.
void SignatureEntry::heed_obstacle() {
  if (warm_up_.obstacle().empty()) return;
  if (!options_.policy.strict) return stay_eager(warm_up_.obstacle());
  if (warm_up_.calls() < options_.warmup) return;
  throw UsageError({.what = fmt::format("the {} cannot be captured: {}", options_.policy.noun, warm_up_.obstacle())});
}

bool SignatureEntry::is_due() const {
  if (is_eager_ || !graphs_.empty()) return false;
  return warm_up_.is_over() || (warm_up_.calls() >= options_.warmup && !warm_up_.obstacle().empty());
}

// Nothing is captured into a pool that sleeps. A strict cache refuses the call for it; else it is no reason to stay eager behind resume().
bool SignatureEntry::has_to_wait_for_pool() const {
  return !options_.policy.strict && !options_.pool.empty() && options_.pool.state()->is_asleep();
}

// A step has no calls in flight: where none of its graphs is free, gradients are in a state that none of them was
// captured in, and the oldest makes room.
bool SignatureEntry::may_capture() {
  if (is_eager_ || !warm_up_.is_over() || has_to_wait_for_pool()) return false;
  if (graphs_.size() < static_cast<std::size_t>(options_.max_in_flight)) return true;
  if (!is_step()) {
    refuse_debts();
    note_in_flight();
    return false;
  }
  const LeafSet replaced = graphs_.back().call->replaced_gradients();
  graphs_.erase(graphs_.begin());
  note_recapture("gradients are not as they were at capture: set or kept from outside");
  // A capture on the tape that fails for them could not be made again, where other ranks have taken part in it.
  const Observation& last = warm_up_.last();
  const bool may_try =
      !no_own_gradients_ && !last.shows_gradients() && !(last.communicates() && last.device().is_cpu());
  if (!may_try) {
    own_gradients_.clear();
  } else if (!own_gradients_.empty() || recaptures_.in_a_row() > 1) {
    own_gradients_.insert(replaced.begin(), replaced.end());
  }
  return !is_eager_;
}

bool SignatureEntry::is_step() const {
  return options_.policy.whole_iterations || warm_up_.last().kind() == GraphedKind::step;
}

std::shared_ptr<CapturedCallable> SignatureEntry::oldest_debtor() const noexcept {
  std::shared_ptr<CapturedCallable> oldest;
  for (const CachedGraph& graph : graphs_) {
    auto one = graph.call->debtor();
    if (one != nullptr && (oldest == nullptr || one->oldest_debt() < oldest->oldest_debt())) oldest = std::move(one);
  }
  return oldest;
}

// An eager call in their place would hide that gradients were lost.
void SignatureEntry::refuse_debts() const {
  if (oldest_debtor() == nullptr) return;
  const auto owing = std::count_if(graphs_.begin(), graphs_.end(),
                                   [](const CachedGraph& graph) { return graph.call->debtor() != nullptr; });
  throw UsageError({.what = fmt::format("{} calls with {} wait for backward_weights() (backward_dw() in Python), which "
                                        "computes what their backward passes left for later; nothing was launched",
                                        owing, signature_.text()),
                    .fix = "call it once for each backward pass, or raise max_in_flight",
                    .rule = "PG907"});
}

void SignatureEntry::note_in_flight() {
  if (std::exchange(is_noted_, true)) return;
  note_ = fmt::format(
      "{} calls with {} wait for their backward pass, so further calls run eagerly: raise max_in_flight, or release "
      "results that need no backward pass",
      graphs_.size(), signature_.text());
}

CachedGraph* SignatureEntry::capture(const CallInputs& inputs, Call& call, GraphMaker& maker, std::size_t function) {
  std::string reason;
  bool is_its_own = false;
  doubt_.clear();
  const Observation& last = warm_up_.last();
  const bool is_whole =
      last.kind() == GraphedKind::inference &&
      (warm_up_.gives_other_numbers() || last.communicates() || (checks_reads() && last.reads_values()));
  try {
    const GraphMaker::Source source{.inputs = inputs.copied,
                                    .observation = last,
                                    .gradients = warm_up_.gradients(),
                                    .is_adopted = is_adopted_,
                                    .is_step = is_step() || is_whole,
                                    .checks_reads = checks_reads(),
                                    .own_gradients = own_gradients_,
                                    .shares_gradients = warm_up_.shares_gradients(),
                                    .shares_inputs = warm_up_.shares_inputs(),
                                    .gradient_strides = warm_up_.gradient_strides(),
                                    .shares_scratch = shares_scratch_,
                                    .shares_input_memory = shares_inputs_,
                                    .function = function,
                                    .samples = warm_up_.samples()};
    CachedGraph& graph = graphs_.emplace_back(maker.make(call, source));
    ill_timed_ = 0;
    warm_up_.forget_places();
    return &graph;
  } catch (const std::exception& error) {
    if (call.was_interrupted(error)) throw;
    if (dynamic_cast<const OutOfStep*>(&error) != nullptr) {
      if (!options_.policy.strict) stay_eager(error.what());
      throw;
    }
    if (dynamic_cast<const NoOwnGradients*>(&error) != nullptr) {
      own_gradients_.clear();
      no_own_gradients_ = true;
      return nullptr;
    }
    if (shares_scratch_ && dynamic_cast<const HeldScratch*>(&error) != nullptr) {
      shares_scratch_ = false;
      return nullptr;
    }
    if (shares_inputs_ && dynamic_cast<const HeldInput*>(&error) != nullptr) {
      shares_inputs_ = false;
      return nullptr;
    }
    if (dynamic_cast<const UncheckedReads*>(&error) != nullptr) {
      give_up_checks(static_cast<const UncheckedReads&>(error).diagnosis().what);
      return nullptr;
    }
    if (dynamic_cast<const OtherReads*>(&error) != nullptr) {
      ++misses_;
      if (++tries_ > kMostTries) give_up_checks("what it reads changes from call to call");
      return nullptr;
    }
    // The function has thrown, or torch: perhaps because it went on with what the call before has read.
    is_its_own = dynamic_cast<const Error*>(&error) == nullptr;
    if (is_its_own && checks_reads() && !last.checked_values().empty() && ++tries_ <= kMostTries) return nullptr;
    const bool is_other_path = dynamic_cast<const OtherPath*>(&error) != nullptr;
    if (is_other_path && warm_up_.note_other_path()) return nullptr;
    if (options_.policy.strict) throw;
    if (is_of_one_iteration(error) && ++ill_timed_ <= kMostIllTimed) return nullptr;
    reason = error.what();
  } catch (...) {
    if (options_.policy.strict) throw;
    reason = "only under capture, the function threw something that is not a std::exception";
  }
  if (call.tell_numbers_apart(reason, /*in_capture=*/true)) {
    warm_up_.start_again();  // the next calls are given their numbers themselves
    return nullptr;
  }
  reason += maker.note_of_second_run();
  if (is_its_own) {
    doubt_ = std::move(reason);
  } else {
    stay_eager(std::move(reason));
  }
  return nullptr;
}

void SignatureEntry::adopt(const SignatureEntry& other) {
  warm_up_.adopt(other.warm_up_);
  reads_values_ = other.reads_values_;
  no_checks_ = other.no_checks_;
  is_adopted_ = true;
}

void SignatureEntry::note_eager_call(std::optional<Observation> observed, std::span<const at::Tensor> copied,
                                     Call& call) {
  ++eager_calls_;
  if (!doubt_.empty()) return stay_eager(std::exchange(doubt_, {}));
  if (!observed || !wants_observation()) return;  // another thread's call may have been the last one that was wanted
  input_sizes_ = sizes_of_inputs(copied);
  look_for_reads(*observed);
  warm_up_.note(*std::move(observed), call);
  if (warm_up_.reads_vary()) give_up_checks("what it reads changes from call to call");
  if (!options_.policy.strict) heed_obstacle();  // else the next call throws, which computes nothing
}

std::span<const InputSize> SignatureEntry::expected_inputs() const {
  const bool is_wanted = shares_inputs_ && is_due() && warm_up_.has_last();
  return is_wanted && (is_step() || warm_up_.last().kind() == GraphedKind::inference) ? input_sizes_
                                                                                      : std::span<const InputSize>();
}

std::vector<at::Tensor> SignatureEntry::static_inputs() const {
  std::vector<at::Tensor> result;
  for (const CachedGraph& graph : graphs_) {
    const std::vector<at::Tensor> inputs = graph.call->static_inputs();
    result.insert(result.end(), inputs.begin(), inputs.end());
  }
  return result;
}

void SignatureEntry::stay_eager(std::string reason) {
  reason_ = std::move(reason);
  if (!no_checks_.empty()) reason_ += "\n  note:  replays cannot check what is read: " + no_checks_;
  is_eager_ = true;
  graphs_.clear();
  warm_up_.start_again();
}

std::optional<std::string> SignatureEntry::take_reason() {
  if (!is_eager_ || std::exchange(is_reported_, true)) return std::nullopt;
  return fmt::format("{}s with {} stay eager: {}", options_.policy.noun, signature_.text(), reason_);
}

SignatureInfo SignatureEntry::info() const {
  return {.signature = signature_.text(),
          .kind = warm_up_.is_over() ? warm_up_.last().kind() : GraphedKind::undecided,
          .state = is_eager_         ? GraphedState::eager
                   : graphs_.empty() ? GraphedState::warming_up
                                     : GraphedState::captured,
          .warmup_calls = warm_up_.calls(),
          .graphs = graphs_.size(),
          .recaptures = recaptures_.count(),
          .replays = recaptures_.replays(),
          .eager_calls = eager_calls_,
          .misses = misses_,
          .reads_values = reads_values_ && !never_checks_,
          .reason = reason_,
          .gain = gain(),
          .branches = branches()};
}

std::string SignatureEntry::gain() const {
  if (graphs_.empty() || !warm_up_.has_last()) return "";
  const std::size_t operations = warm_up_.last().log().size();
  if (graphs_.front().device.is_cpu()) return fmt::format("{} operations without Python and autograd", operations);
  const bool has_backward = warm_up_.last().kind() == GraphedKind::autograd;
  return fmt::format("one launch in place of {} operations{}", operations,
                     has_backward ? ", and one for the backward pass" : "");
}

std::vector<BranchInfo> SignatureEntry::branches() const {
  std::vector<BranchInfo> result;
  if (options_.branches == 0) return result;
  for (const CachedGraph& graph : graphs_) {
    const std::vector<BranchInfo> more = graph.call->branches();
    result.insert(result.end(), more.begin(), more.end());
  }
  return result;
}

}  // namespace pianola::callable
