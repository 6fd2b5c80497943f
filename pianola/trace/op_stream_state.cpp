#include <pianola/trace/op_stream_state.hpp>

#include <pianola/trace/op_callbacks.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace pianola::trace {
namespace {

std::uint64_t next_recording() {
  static std::atomic<std::uint64_t> recordings{0};
  return ++recordings;
}

}  // namespace

OpStreamState::OpStreamState(std::vector<OpObserver*> observers, ForRanks patience, OpStreamState* outer)
    : outer_(outer == nullptr ? nullptr : outer->shared_from_this()),
      recording_(outer == nullptr ? next_recording() : outer->recording_),
      patience_(patience),
      observers_(std::move(observers)) {
  for (const OpObserver* observer : observers_) {
    const OpInterest interest = observer->interest();
    interest_.outputs = interest_.outputs || interest.outputs;
    interest_.inner = interest_.inner || interest.inner;
    interest_.host_numbers = interest_.host_numbers || interest.host_numbers;
  }
  if (outer == nullptr) return;
  if (outer->patience_ == ForRanks::as_long_as_it_takes) patience_ = outer->patience_;
  interest_.inner = interest_.inner || outer->interest_.inner;
}

void OpStreamState::open() {
  if (interest_.host_numbers) listen_to_allocations();
  guard_.emplace(torch_abi::kSlotOfOperations, shared_from_this());
  if (outer_ == nullptr) return listen_to_operations();
  // The outer stream's callback is in place already; it finds this state, which hands on to the outer one.
  OpStreamState& root = outermost();
  if (interest_.outputs && !root.interest_.outputs) {
    at::removeCallback(root.callback_);
    root.interest_.outputs = true;
    root.listen_to_operations();
  }
}

void OpStreamState::listen_to_operations() { callback_ = add_op_callbacks(interest_.outputs); }

// A stream may begin inside an operation, in a hook on what that saved.
void OpStreamState::listen_to_allocations() {
  allocations_ = std::make_unique<AllocationLog>(AllocationLog::Of::cpu);
  allocations_->pause(!position().operations.empty());
  memory_.listen_to(allocations_.get());
}

void OpStreamState::close() {
  if (callback_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(callback_);
  guard_.reset();
  std::unique_ptr<AllocationLog> ended;  // behind the lock
  const std::lock_guard lock(mutex_);
  memory_.listen_to(nullptr);
  ended = std::move(allocations_);
}

void OpStreamState::disarm() noexcept {
  const std::lock_guard lock(mutex_);
  disarmed_ = true;
  std::fill(observers_.begin(), observers_.end(), nullptr);
  if (allocations_ != nullptr) allocations_->stop();
}

// See Note [An observer that throws].
template <typename Show>
void OpStreamState::tell(const OpSpan& op, const Show& show) {
  for (OpObserver*& observer : observers_) {
    if (observer == nullptr) continue;
    try {
      show(*observer);
    } catch (...) {
      observer = nullptr;
      failure_.note(op.info == nullptr ? "an operation" : op.info->schema().name());
    }
  }
}

void OpStreamState::begin_op(OpSpan op) {
  const ObserversRun quiet;
  const std::lock_guard lock(mutex_);
  if (!disarmed_) {
    op.memory = &memory_;
    memory_.note_inputs(op);
    tell(op, [&](OpObserver& observer) { observer.on_op_begin(op); });
  }
  if (outer_ != nullptr) outer_->begin_op(op);
}

void OpStreamState::end_op(OpSpan op) {
  const ObserversRun quiet;
  const std::lock_guard lock(mutex_);
  if (!disarmed_) {
    op.memory = &memory_;
    tell(op, [&](OpObserver& observer) { observer.on_op_end(op); });
    memory_.note_results(op);
  }
  if (outer_ != nullptr) outer_->end_op(op);
}

void OpStreamState::end_inner(const OpSpan& around, const char* inner) {
  const ObserversRun quiet;
  const std::lock_guard lock(mutex_);
  tell(around, [&](OpObserver& observer) { observer.on_inner_end(around, inner); });
  if (outer_ != nullptr) outer_->end_inner(around, inner);
}

void OpStreamState::show_taken_apart(OpSpan call) {
  const ObserversRun quiet;
  const std::lock_guard lock(mutex_);
  call.memory = &memory_;
  tell(call, [&](OpObserver& observer) { observer.on_taken_apart(call); });
  if (outer_ != nullptr) outer_->show_taken_apart(call);
}

void OpStreamState::note_hidden(const OpSpan& around, const OpInfo& hidden, c10::ArrayRef<c10::IValue> results) {
  const std::lock_guard lock(mutex_);
  if (!disarmed_) memory_.note_hidden(around, hidden, results);
  if (outer_ != nullptr) outer_->note_hidden(around, hidden, results);
}

bool OpStreamState::knows(Oddity oddity) {
  const std::lock_guard lock(mutex_);
  return !first_odd_.is_news(oddity);
}

// What this stream knows, those around it know.
void OpStreamState::note_odd(Oddity oddity, std::string what, const char* op, const ThreadPosition& here) {
  if (knows(oddity)) return;
  const ObserversRun quiet;
  const OddWork work{.oddity = oddity,
                     .what = std::move(what),
                     .op = here.callers.empty() ? op : here.callers.front(),
                     .scope = fmt::format("{}", fmt::join(here.scopes, "/")),
                     .backward = here.backward.empty() ? "" : here.backward.back().name,
                     .site = CallSite::here()};
  for (OpStreamState* state = this; state != nullptr; state = state->outer_.get()) {
    const std::lock_guard lock(state->mutex_);
    state->first_odd_.note(work);
  }
}

void OpStreamState::note_buffers(c10::ArrayRef<c10::IValue> allocated) {
  const std::lock_guard lock(mutex_);
  buffers_.note(allocated);
}

bool OpStreamState::reads_buffers(c10::ArrayRef<c10::IValue> inputs) {
  const std::lock_guard lock(mutex_);
  return buffers_.are_read_by(inputs);
}

void OpStreamState::note_released(const ReleasedNode& node) {
  const std::lock_guard lock(mutex_);
  released_.push_back(node);
  if (outer_ != nullptr) outer_->note_released(node);
}

void OpStreamState::share_scopes(const std::vector<std::string>& scopes) {
  OpStreamState& root = outermost();
  const std::lock_guard lock(root.mutex_);
  root.step_scopes_ = scopes;
}

std::vector<std::string> OpStreamState::shared_scopes() {
  OpStreamState& root = outermost();
  const std::lock_guard lock(root.mutex_);
  return root.step_scopes_;
}

std::optional<OddWork> OpStreamState::odd_work() {
  const std::lock_guard lock(mutex_);
  return first_odd_.odd_work();
}

std::optional<OddWork> OpStreamState::communication() {
  const std::lock_guard lock(mutex_);
  return first_odd_.communication();
}

std::vector<ReleasedNode> OpStreamState::released_nodes() {
  const std::lock_guard lock(mutex_);
  return released_;
}

}  // namespace pianola::trace
