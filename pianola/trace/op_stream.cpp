#include <pianola/trace/op_stream.hpp>

#include <pianola/torch_abi/thread_slot.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/collective_work.hpp>
#include <pianola/trace/compiled_code.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/odd_operation.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/resized_storage.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/graph_task.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace pianola::trace {
namespace {

// An operation that has begun and not ended.
struct OpenOperation {
  const OpInfo* info;  // nullptr: one that is not plain, or the host's own
  const char* name;    // as its span has it
  std::uint64_t number;
  std::size_t callers;         // open composites when it began
  bool differentiates;         // it has a kernel for autograd, whose calls are operations too
  bool waits = false;          // for its end; see Note [Collectives that are observed]
  bool is_own = false;         // the host's
  bool fills_buffers = false;  // which the host's wait copies into its results
};

// Where one thread stands among the open spans.
struct ThreadPosition {
  std::uint64_t recording = 0;            // the recording that the rest belongs to
  std::vector<OpenOperation> operations;  // outermost first
  int hidden = 0;                         // open spans inside the kernel of the innermost operation
  std::vector<const char*> callers;       // open composites
  std::vector<std::size_t> taken_apart;   // which of them are calls that Python takes apart, by their places
  std::vector<std::string> scopes;        // open user scopes
  std::vector<RunningNode> backward;      // open backward nodes; more than one where a backward runs a backward

  // Whether what is called now is hidden in the kernel of an operation. See Note [Calls of a kernel for autograd].
  [[nodiscard]] bool in_kernel() const {
    if (hidden > 0) return true;
    return !operations.empty() && (!operations.back().differentiates ||
                                   c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality));
  }

  [[nodiscard]] bool ends_operation(const char* name) const {
    return !operations.empty() && operations.back().name == name && operations.back().callers == callers.size();
  }
  [[nodiscard]] bool ends_composite(const char* name) const { return !callers.empty() && callers.back() == name; }
};

// While observers look at an operation. Asking a tensor subclass for its sizes may call operators: they are the
// observer's doing, not the step's, and would wait for the lock that this thread holds.
thread_local bool observers_run = false;

class ObserversRun {
 public:
  ObserversRun() { observers_run = true; }
  ObserversRun(const ObserversRun&) = delete;
  ObserversRun& operator=(const ObserversRun&) = delete;
  ~ObserversRun() { observers_run = before_; }

 private:
  bool before_ = observers_run;  // an inner stream's observers, then the outer one's
};

// Who calls an operator by a stack leaves other values below its arguments, and its results: TorchScript, functorch.
c10::ArrayRef<c10::IValue> last_of(c10::ArrayRef<c10::IValue> stack, std::size_t count) {
  return stack.size() > count ? stack.slice(stack.size() - count) : stack;
}

c10::ArrayRef<c10::IValue> inputs_of(const at::RecordFunction& span, const OpInfo& info) {
  return last_of(span.inputs(), info.schema().arguments().size());
}

c10::ArrayRef<c10::IValue> outputs_of(const at::RecordFunction& span, const OpInfo& info) {
  return last_of(span.outputs(), info.schema().returns().size());
}

// A Work of Gloo that stands for a message opens a span, which ends where the host waits for it, long after the operation.
bool is_nobodys(const at::RecordFunction& span) { return span.isAsync() || belongs_to_a_process_group(); }

// Goes with an open scope, whose end may come when another recording runs.
struct ScopeContext : at::ObserverContext {
  explicit ScopeContext(std::uint64_t opened_in) : recording(opened_in) {}
  std::uint64_t recording;
};

}  // namespace

// Note [How a recording finds its threads]
// The callbacks are thread local, and so is the pointer to the state, kept as ThreadLocalDebugInfo: autograd copies both
// to the thread that runs a backward (at::ThreadLocalState), and nothing copies them to intra-op workers or to threads
// of the user's own.
struct OpStream::State : c10::DebugInfoBase, std::enable_shared_from_this<OpStream::State> {
  std::vector<OpObserver*> observers;
  OpInterest interest = {.outputs = false};  // of all observers, those of outer streams included
  StepMemory memory;
  AllocationLog* allocations = nullptr;  // of the stream; used on its thread only
  CollectiveBuffers buffers;             // by the mutex
  std::shared_ptr<State> outer;
  std::uint64_t recording = 0;  // the same for nested streams
  ForRanks patience = ForRanks::a_while;
  std::mutex mutex;       // autograd's threads of several devices run at once
  bool disarmed = false;  // see disarm(); by the mutex
  // Open user scopes of the thread that made the stream, for autograd's threads; kept by the outermost stream.
  std::vector<std::string> step_scopes;
  std::thread::id step_thread = std::this_thread::get_id();
  FirstOddWork first_odd;              // by the mutex
  std::vector<ReleasedNode> released;  // by the mutex
  ObserverFailure failure;
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

  static State* current() { return static_cast<State*>(c10::ThreadLocalDebugInfo::get(torch_abi::kSlotOfOperations)); }

  // See Note [An observer that throws].
  template <typename Show>
  void tell(const OpSpan& op, const Show& show) {
    for (OpObserver*& observer : observers) {
      if (observer == nullptr) continue;
      try {
        show(*observer);
      } catch (...) {
        observer = nullptr;
        failure.note(op.info == nullptr ? "an operation" : op.info->schema().name());
      }
    }
  }

  void begin_op(OpSpan op) {
    const ObserversRun quiet;
    const std::lock_guard lock(mutex);
    if (!disarmed) {
      op.memory = &memory;
      memory.note_inputs(op);
      tell(op, [&](OpObserver& observer) { observer.on_op_begin(op); });
    }
    if (outer != nullptr) outer->begin_op(op);
  }

  void end_op(OpSpan op) {
    const ObserversRun quiet;
    const std::lock_guard lock(mutex);
    if (!disarmed) {
      op.memory = &memory;
      tell(op, [&](OpObserver& observer) { observer.on_op_end(op); });
      memory.note_results(op);
    }
    if (outer != nullptr) outer->end_op(op);
  }

  void end_inner(const OpSpan& around, const char* inner) {
    const ObserversRun quiet;
    const std::lock_guard lock(mutex);
    tell(around, [&](OpObserver& observer) { observer.on_inner_end(around, inner); });
    if (outer != nullptr) outer->end_inner(around, inner);
  }

  [[nodiscard]] bool knows(Oddity oddity) {
    const std::lock_guard lock(mutex);
    return !first_odd.is_news(oddity);
  }

  // For this stream and those around it, where it is their first. What this one knows, those know.
  void note_odd(Oddity oddity, std::string what, const char* op, const ThreadPosition& here) {
    if (knows(oddity)) return;
    const ObserversRun quiet;
    const OddWork work{.oddity = oddity,
                       .what = std::move(what),
                       .op = here.callers.empty() ? op : here.callers.front(),
                       .scope = fmt::format("{}", fmt::join(here.scopes, "/")),
                       .backward = here.backward.empty() ? "" : here.backward.back().name,
                       .site = CallSite::here()};
    for (State* state = this; state != nullptr; state = state->outer.get()) {
      const std::lock_guard lock(state->mutex);
      state->first_odd.note(work);
    }
  }

  void note_odd(const OddOperation& odd, const char* verb, const OpInfo& info, const ThreadPosition& here) {
    const char* const op = info.schema().name().c_str();
    note_odd(odd.oddity, in_words(odd, here.callers.empty() ? op : here.callers.front(), verb), op, here);
  }

  void note_collective(const OpInfo& info, const ThreadPosition& here) {
    const std::string& name = info.schema().name();
    const Oddity oddity = oddity_of_operator(name);
    note_odd(oddity, collective_in_words(oddity, name), name.c_str(), here);
  }

  void note_slow_collective(const OpInfo& info, const ThreadPosition& here) {
    const std::string& name = info.schema().name();
    note_odd(Oddity::late_rank, late_rank_in_words(name), name.c_str(), here);
  }

  // What such a collective allocated for itself; see Note [Collectives that are observed].
  void note_buffers(const at::RecordFunction& span) {
    const OpInfo* info = span.scope() == at::RecordScope::FUNCTION ? find_op(span) : nullptr;
    if (info == nullptr || !info->is_empty) return;
    const std::lock_guard lock(mutex);
    buffers.note(outputs_of(span, *info));
  }

  [[nodiscard]] bool reads_buffers(c10::ArrayRef<c10::IValue> inputs) {
    const std::lock_guard lock(mutex);
    return buffers.are_read_by(inputs);
  }

  void take_apart(const at::RecordFunction& span, const OpInfo& info, c10::ArrayRef<c10::IValue> inputs,
                  const ThreadPosition& here) {
    for (const c10::IValue& value : inputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.is_leaf() && tensor.requires_grad() && is_made_of_tensors(tensor))
          note_odd({.oddity = Oddity::odd_leaf, .tensor = tensor}, "is given", info, here);
      });
    }
    OpSpan call = describe(span, here);
    call.info = &info;
    call.inputs = inputs;
    show_taken_apart(call);
  }

  void show_taken_apart(OpSpan call) {
    const ObserversRun quiet;
    const std::lock_guard lock(mutex);
    call.memory = &memory;
    tell(call, [&](OpObserver& observer) { observer.on_taken_apart(call); });
    if (outer != nullptr) outer->show_taken_apart(call);
  }

  // What is no operator, but says what goes on.
  void note_span(const char* name, Oddity oddity, const ThreadPosition& here) {
    if (oddity == Oddity::none || (oddity == Oddity::compiled && compiled_code_is_seen())) return;
    note_odd(oddity, span_in_words(oddity, name), "", here);
  }

  void note_hidden(const OpSpan& around, const OpInfo& hidden, c10::ArrayRef<c10::IValue> results) {
    const std::lock_guard lock(mutex);
    if (!disarmed) memory.note_hidden(around, hidden, results);
    if (outer != nullptr) outer->note_hidden(around, hidden, results);
  }

  void end_hidden(const at::RecordFunction& span, const ThreadPosition& here) {
    const OpSpan around = describe(span, here);
    const OpInfo* hidden = span.scope() == at::RecordScope::FUNCTION ? find_op(span) : nullptr;
    if (hidden != nullptr) note_hidden(around, *hidden, outputs_of(span, *hidden));
    end_inner(around, span.name());
  }

  // The innermost operation that is open.
  static OpSpan describe(const at::RecordFunction& span, const ThreadPosition& here) {
    const std::size_t open = here.operations.size();
    return {.number = open > 0 ? here.operations[open - 1].number : 0,
            .info = open > 0 ? here.operations[open - 1].info : nullptr,
            .inputs = {},
            .outputs = {},
            .sequence = span.seqNr(),
            .backward = here.backward.empty() ? nullptr : &here.backward.back(),
            .scopes = here.scopes,
            .callers = here.callers,
            .memory = nullptr,
            .around = open > 1 ? here.operations[open - 2].number : 0};
  }

  static OpenOperation hidden_operation(const at::RecordFunction& span, const ThreadPosition& here) {
    return {.info = nullptr,
            .name = span.name(),
            .number = next_number(),
            .callers = here.callers.size(),
            .differentiates = false};
  }

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
    State* state = observers_run ? nullptr : current();
    if (state == nullptr || is_nobodys(span)) return nullptr;
    ThreadPosition& here = state->position();
    if (here.in_kernel()) {
      ++here.hidden;
      return nullptr;
    }
    if (span.scope() != at::RecordScope::FUNCTION) {
      state->note_span(span.name(), oddity_of_scope(span.name()), here);
      state->enter_scope(span, here);
      return std::make_unique<ScopeContext>(state->recording);
    }
    const OpInfo* info = find_op(span);
    if (info == nullptr) {
      state->note_span(span.name(), oddity_of_span(span.name()), here);
      return nullptr;
    }
    if (info->name.starts_with("profiler::")) return nullptr;
    if (is_of_a_transform()) {
      here.callers.push_back(span.name());
      return nullptr;
    }
    const c10::ArrayRef<c10::IValue> inputs = inputs_of(span, *info);
    const OddOperation odd = oddity_of_call(inputs);
    if (is_left_by_a_transform(odd.tensor)) {
      here.callers.push_back(span.name());
      return nullptr;
    }
    if (odd.oddity == Oddity::subclass && is_taken_apart_by_python(odd.tensor)) {
      state->take_apart(span, *info, inputs, here);
      here.taken_apart.push_back(here.callers.size());
      here.callers.push_back(span.name());
      return nullptr;
    }
    if (odd.oddity != Oddity::none) {
      state->let_host_allocate(false);
      if (odd.oddity == Oddity::dispatch_mode && is_compiling()) {
        state->note_odd(Oddity::compiling, "torch.compile compiles code while the step runs", span.name(), here);
        here.operations.push_back(hidden_operation(span, here));
        return nullptr;
      }
      const bool computes = here.taken_apart.empty() || odd.oddity != Oddity::dispatch_mode || !computes_shapes_alone();
      if (computes) state->note_odd(odd, "is given", *info, here);
      here.operations.push_back(hidden_operation(span, here));
      return nullptr;
    }
    if (info->collective) state->note_collective(*info, here);
    if (resizes_for_users()) [[unlikely]]
      state->note_odd(Oddity::resized, "the step resizes a storage, whose memory a graph would use as it was",
                      span.name(), here);
    if (info->transparent_now(inputs) || (CallGate::is_open() && CallGate::makes_of_others(*info, inputs))) {
      here.callers.push_back(span.name());
      return nullptr;
    }
    state->let_host_allocate(false);
    if (state->reads_buffers(inputs)) {
      here.operations.push_back(hidden_operation(span, here));
      return nullptr;
    }
    if (HostCalls* host = HostCalls::current(); host != nullptr && host->owns(*info, inputs)) {
      host->note_own(*info, inputs);
      here.operations.push_back(hidden_operation(span, here));
      here.operations.back().is_own = true;
      return nullptr;
    }
    here.operations.push_back({.info = info,
                               .name = span.name(),
                               .number = next_number(),
                               .callers = here.callers.size(),
                               .differentiates = info->differentiates_now(inputs),
                               .waits = is_waited_for(*info, inputs),
                               .fills_buffers = CollectiveBuffers::are_made_by(*info, inputs)});
    OpSpan op = describe(span, here);
    op.inputs = inputs;
    state->begin_op(op);
    return nullptr;
  }

  static void end_unseen(const at::RecordFunction& span, ThreadPosition& here) {
    HostCalls* const host = here.operations.back().is_own ? HostCalls::current() : nullptr;
    const OpInfo* const info = host == nullptr ? nullptr : find_op(span);
    if (info != nullptr) host->note_own_results(outputs_of(span, *info));
    here.operations.pop_back();
  }

  static void on_end(const at::RecordFunction& span, at::ObserverContext* context) {
    State* state = observers_run ? nullptr : current();
    if (state == nullptr || is_nobodys(span)) return;
    ThreadPosition& here = state->position();
    if (here.hidden > 0) {
      --here.hidden;
      if (here.operations.back().fills_buffers) state->note_buffers(span);
      if (state->interest.inner && here.operations.back().info != nullptr) state->end_hidden(span, here);
    } else if (span.scope() != at::RecordScope::FUNCTION) {
      const auto* scope = static_cast<const ScopeContext*>(context);
      if (scope != nullptr && scope->recording == state->recording) state->leave_scope(span, here);
    } else if (here.ends_operation(span.name())) {
      OpSpan op = describe(span, here);
      const bool is_outermost = here.operations.size() == 1;
      if (is_outermost) state->let_host_allocate(true);
      if (op.info == nullptr) return end_unseen(span, here);
      op.outputs = outputs_of(span, *op.info);
      if (here.operations.back().waits && !waits_until_done(op.outputs, state->patience))
        state->note_slow_collective(*op.info, here);
      if (const OddOperation odd = odd_tensor_in(op.outputs); odd.oddity != Oddity::none) {
        state->note_odd(odd, "makes", *op.info, here);
        op.outputs = {};  // as if it threw: there is nothing that an observer could look at
      }
      here.operations.pop_back();  // before the observers: one that throws must not leave the operation open
      state->end_op(op);
    } else if (here.ends_composite(span.name())) {
      here.callers.pop_back();
      if (!here.taken_apart.empty() && here.taken_apart.back() == here.callers.size()) here.taken_apart.pop_back();
      if (!state->interest.inner) return;
      OpSpan around = describe(span, here);
      around.info = find_op(span);
      state->end_inner(around, span.name());
    }
  }

  // The same, but nothing is thrown; see Note [An observer that throws].
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& span) {
    try {
      return on_begin(span);
    } catch (...) {
      if (State* state = current(); state != nullptr) state->failure.note(span.name());
    }
    return nullptr;
  }

  static void end(const at::RecordFunction& span, at::ObserverContext* context) {
    try {
      on_end(span, context);
    } catch (...) {
      if (State* state = current(); state != nullptr) state->failure.note(span.name());
    }
  }

  // What is allocated inside an operation is the operation's.
  void let_host_allocate(bool lets) {
    for (State* state = this; state != nullptr; state = state->outer.get()) {
      if (state->allocations != nullptr && state->on_step_thread()) state->allocations->pause(!lets);
    }
  }

  void listen() {
    callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&State::begin, &State::end)
            .needsInputs(true)
            .needsOutputs(interest.outputs)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  }

  State& outermost() { return outer == nullptr ? *this : outer->outermost(); }
  [[nodiscard]] bool on_step_thread() const { return std::this_thread::get_id() == step_thread; }

  void enter_scope(const at::RecordFunction& span, ThreadPosition& here) {
    if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      if (here.backward.empty() && !on_step_thread()) here.scopes = shared_scopes();
      here.backward.push_back({.name = span.name(), .sequence = span.seqNr()});
      if (!torch::autograd::get_current_graph_task_keep_graph()) {
        note_released({.thread = span.forwardThreadId(), .sequence = span.seqNr()});
      }
    } else {
      here.scopes.emplace_back(span.name());
      if (on_step_thread()) share_scopes(here.scopes);
    }
  }

  void note_released(const ReleasedNode& node) {
    const std::lock_guard lock(mutex);
    released.push_back(node);
    if (outer != nullptr) outer->note_released(node);
  }

  void leave_scope(const at::RecordFunction& span, ThreadPosition& here) {
    if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      if (!here.backward.empty()) here.backward.pop_back();
    } else if (!here.scopes.empty()) {
      here.scopes.pop_back();
      if (on_step_thread()) share_scopes(here.scopes);
    }
  }

  void share_scopes(const std::vector<std::string>& scopes) {
    State& root = outermost();
    const std::lock_guard lock(root.mutex);
    root.step_scopes = scopes;
  }

  std::vector<std::string> shared_scopes() {
    State& root = outermost();
    const std::lock_guard lock(root.mutex);
    return root.step_scopes;
  }
};

std::optional<OddWork> OpStream::odd_work() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first_odd.odd_work();
}

std::optional<OddWork> OpStream::communication() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first_odd.communication();
}

std::vector<ReleasedNode> OpStream::released_nodes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->released;
}

void OpStream::note_compiled(std::string what, bool is_new) {
  State* const state = State::current();
  if (state == nullptr) return;
  state->note_odd(is_new ? Oddity::compiling : Oddity::compiled, std::move(what), "", state->position());
}

bool OpStream::watches_this_thread() noexcept { return State::current() != nullptr; }

std::thread::id OpStream::thread_of_step() noexcept {
  const State* const state = State::current();
  return state == nullptr ? std::this_thread::get_id() : state->step_thread;
}

bool OpStream::runs_python_of_a_tensor() noexcept {
  const State* const state = State::current();
  return state != nullptr && !state->position().taken_apart.empty();
}

bool operations_are_watched() noexcept { return OpStream::watches_this_thread(); }

void note_compiled_code(std::string what, bool is_new) { OpStream::note_compiled(std::move(what), is_new); }

bool runs_python_of_a_tensor() noexcept { return OpStream::runs_python_of_a_tensor(); }

std::optional<Diagnosis> OpStream::failure() const { return state_->failure.diagnosis(); }

void OpStream::disarm() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->disarmed = true;
  std::fill(state_->observers.begin(), state_->observers.end(), nullptr);
  if (allocations_ != nullptr) allocations_->stop();
}

void OpStream::check() const {
  if (auto failed = failure()) throw_failure(*std::move(failed));
}

OpStream::OpStream(std::vector<OpObserver*> observers, ForRanks patience) : state_(std::make_shared<State>()) {
  state_->patience = patience;
  static std::atomic<std::uint64_t> recordings{0};
  for (const OpObserver* observer : observers) {
    const OpInterest interest = observer->interest();
    state_->interest.outputs = state_->interest.outputs || interest.outputs;
    state_->interest.inner = state_->interest.inner || interest.inner;
    state_->interest.host_numbers = state_->interest.host_numbers || interest.host_numbers;
  }
  state_->observers = std::move(observers);
  State* outer = State::current();
  if (outer != nullptr && outer->patience == ForRanks::as_long_as_it_takes) state_->patience = outer->patience;
  if (outer == nullptr) {
    state_->recording = ++recordings;
    if (state_->interest.host_numbers) listen_to_allocations();
    state_->guard.emplace(torch_abi::kSlotOfOperations, state_);
    state_->listen();
    return;
  }
  // The outer stream's callback is in place already; it finds this state, which hands on to the outer one.
  state_->outer = outer->shared_from_this();
  state_->recording = outer->recording;
  if (state_->interest.host_numbers) listen_to_allocations();
  state_->interest.inner = state_->interest.inner || outer->interest.inner;
  state_->guard.emplace(torch_abi::kSlotOfOperations, state_);
  State& root = outer->outermost();
  if (state_->interest.outputs && !root.interest.outputs) {
    at::removeCallback(root.callback);
    root.interest.outputs = true;
    root.listen();
  }
}

// A stream may begin inside an operation, in a hook on what that saved.
void OpStream::listen_to_allocations() {
  allocations_ = std::make_unique<AllocationLog>(AllocationLog::Of::cpu);
  allocations_->pause(!state_->position().operations.empty());
  state_->allocations = allocations_.get();
  state_->memory.listen_to(allocations_.get());
}

OpStream::~OpStream() {
  if (state_->callback != at::INVALID_CALLBACK_HANDLE) at::removeCallback(state_->callback);
  state_->guard.reset();
  const std::lock_guard lock(state_->mutex);
  state_->allocations = nullptr;
  state_->memory.listen_to(nullptr);
}

}  // namespace pianola::trace
