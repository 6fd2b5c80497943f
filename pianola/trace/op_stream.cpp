#include <pianola/trace/op_stream.hpp>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <mutex>
#include <optional>

namespace pianola::trace {
namespace {

// Where one thread stands among the open spans.
struct ThreadPosition {
  std::uint64_t recording = 0;         // the recording that the rest belongs to
  int depth = 0;                       // open spans from the current operation inwards
  const OpInfo* operation = nullptr;   // the operation, while depth > 0
  std::uint64_t number = 0;            // its number
  std::vector<const char*> callers;    // open composites around it
  std::vector<std::string> scopes;     // open user scopes
  std::vector<BackwardNode> backward;  // open backward nodes; more than one where a backward runs a backward
};

}  // namespace

// Note [How a recording finds its threads]
// The callbacks are thread local, and so is the pointer to the state, kept as ThreadLocalDebugInfo: autograd copies both
// to the thread that runs a backward (at::ThreadLocalState), and nothing copies them to intra-op workers or to threads
// of the user's own. The slot is one that torch's library code does not use.
struct OpStream::State : c10::DebugInfoBase, std::enable_shared_from_this<OpStream::State> {
  static constexpr auto kSlot = c10::DebugInfoKind::TEST_INFO_2;

  std::vector<OpObserver*> observers;
  std::shared_ptr<State> outer;
  std::uint64_t recording = 0;  // the same for nested streams
  std::mutex mutex;             // autograd's threads of several devices run at once
  std::optional<c10::DebugInfoGuard> guard;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

  // A scope that was left open when an earlier recording ended must not show up in this one.
  [[nodiscard]] ThreadPosition& position() const {
    thread_local ThreadPosition here;
    if (here.recording != recording) {
      here = {};
      here.recording = recording;
    }
    return here;
  }

  static std::uint64_t next_number() {
    static std::atomic<std::uint64_t> numbers{0};
    return ++numbers;
  }

  static State* current() { return static_cast<State*>(c10::ThreadLocalDebugInfo::get(kSlot)); }

  template <typename Notify>
  void notify(const Notify& tell) {
    const std::lock_guard lock(mutex);
    for (OpObserver* observer : observers) tell(*observer);
    if (outer != nullptr) outer->notify(tell);
  }

  static OpSpan describe(const at::RecordFunction& span, const ThreadPosition& here) {
    return {.number = here.number,
            .info = here.operation,
            .inputs = {},
            .outputs = {},
            .sequence = span.seqNr(),
            .backward = here.backward.empty() ? nullptr : &here.backward.back(),
            .scopes = here.scopes,
            .callers = here.callers};
  }

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
    State* state = current();
    if (state == nullptr) return nullptr;
    ThreadPosition& here = state->position();
    if (here.depth > 0) {
      ++here.depth;
      return nullptr;
    }
    if (span.scope() != at::RecordScope::FUNCTION) {
      enter_scope(span, here);
      return nullptr;
    }
    const OpInfo* info = find_op(span);
    if (info == nullptr || info->name.starts_with("profiler::")) return nullptr;
    if (info->transparent_now()) {
      here.callers.push_back(span.name());
      return nullptr;
    }
    here.depth = 1;
    here.operation = info;
    here.number = next_number();
    OpSpan op = describe(span, here);
    op.inputs = span.inputs();
    state->notify([&](OpObserver& observer) { observer.on_op_begin(op); });
    return nullptr;
  }

  static void on_end(const at::RecordFunction& span, at::ObserverContext* /*context*/) {
    State* state = current();
    if (state == nullptr) return;
    ThreadPosition& here = state->position();
    if (here.depth > 1) {
      --here.depth;
      const OpSpan around = describe(span, here);
      state->notify([&](OpObserver& observer) { observer.on_inner_end(around, span.name()); });
    } else if (here.depth == 1) {
      OpSpan op = describe(span, here);
      op.outputs = span.outputs();
      state->notify([&](OpObserver& observer) { observer.on_op_end(op); });
      here.depth = 0;
      here.operation = nullptr;
    } else if (span.scope() != at::RecordScope::FUNCTION) {
      leave_scope(span, here);
    } else if (!here.callers.empty() && here.callers.back() == span.name()) {
      here.callers.pop_back();
      OpSpan around = describe(span, here);
      around.info = find_op(span);
      state->notify([&](OpObserver& observer) { observer.on_inner_end(around, span.name()); });
    }
  }

  static void enter_scope(const at::RecordFunction& span, ThreadPosition& here) {
    if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      here.backward.push_back({.name = span.name(), .sequence = span.seqNr()});
    } else {
      here.scopes.emplace_back(span.name());
    }
  }

  static void leave_scope(const at::RecordFunction& span, ThreadPosition& here) {
    if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      if (!here.backward.empty()) here.backward.pop_back();
    } else if (!here.scopes.empty()) {
      here.scopes.pop_back();
    }
  }
};

OpStream::OpStream(std::vector<OpObserver*> observers) : state_(std::make_shared<State>()) {
  static std::atomic<std::uint64_t> recordings{0};
  state_->observers = std::move(observers);
  if (State* outer = State::current(); outer != nullptr) {
    // The outer stream's callback is in place already; it finds this state, which hands on to the outer one.
    state_->outer = outer->shared_from_this();
    state_->recording = outer->recording;
    state_->guard.emplace(State::kSlot, state_);
    return;
  }
  state_->recording = ++recordings;
  state_->guard.emplace(State::kSlot, state_);
  state_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&State::on_begin, &State::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

OpStream::~OpStream() {
  if (state_->callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(state_->callback);
  state_->guard.reset();
}

}  // namespace pianola::trace
