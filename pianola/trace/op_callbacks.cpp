#include <pianola/trace/op_callbacks.hpp>

#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/collective_work.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/odd_operation.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream_state.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/resized_storage.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/thread_position.hpp>

#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace pianola::trace {
namespace {

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

bool is_call(const at::RecordFunction& span) { return span.scope() == at::RecordScope::FUNCTION; }

std::uint64_t next_operation() {
  static std::atomic<std::uint64_t> numbers{0};
  return ++numbers;
}

// Goes with an open scope, whose end may come when another recording runs.
struct ScopeContext : at::ObserverContext {
  explicit ScopeContext(std::uint64_t opened_in) : recording(opened_in) {}
  std::uint64_t recording;
};

// What is no operator, but says what goes on.
void note_span(OpStreamState& state, const char* name, Oddity oddity, const ThreadPosition& here) {
  if (oddity == Oddity::none || (oddity == Oddity::compiled && compiled_code_is_seen())) return;
  state.note_odd(oddity, span_in_words(oddity, name), "", here);
}

void note_odd_operation(OpStreamState& state, const OddOperation& odd, const char* verb, const OpInfo& info,
                        const ThreadPosition& here) {
  const char* const op = info.schema().name().c_str();
  state.note_odd(odd.oddity, in_words(odd, here.callers.empty() ? op : here.callers.front(), verb), op, here);
}

void note_collective(OpStreamState& state, const OpInfo& info, const ThreadPosition& here) {
  const std::string& name = info.schema().name();
  const Oddity oddity = oddity_of_operator(name);
  state.note_odd(oddity, collective_in_words(oddity, name), name.c_str(), here);
}

void note_late_rank(OpStreamState& state, const OpInfo& info, const ThreadPosition& here) {
  const std::string& name = info.schema().name();
  state.note_odd(Oddity::late_rank, late_rank_in_words(name), name.c_str(), here);
}

void begin_scope(OpStreamState& state, const at::RecordFunction& span, ThreadPosition& here) {
  note_span(state, span.name(), oddity_of_scope(span.name()), here);
  if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (here.backward.empty() && !state.on_step_thread()) here.scopes = state.shared_scopes();
    here.backward.push_back({.name = span.name(), .sequence = span.seqNr()});
    if (!torch::autograd::get_current_graph_task_keep_graph()) {
      state.note_released({.thread = span.forwardThreadId(), .sequence = span.seqNr()});
    }
  } else {
    here.scopes.emplace_back(span.name());
    if (state.on_step_thread()) state.share_scopes(here.scopes);
  }
}

void end_scope(OpStreamState& state, const at::RecordFunction& span, ThreadPosition& here) {
  if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (!here.backward.empty()) here.backward.pop_back();
  } else if (!here.scopes.empty()) {
    here.scopes.pop_back();
    if (state.on_step_thread()) state.share_scopes(here.scopes);
  }
}

// What it calls are operations, or composites in turn.
void begin_composite(const at::RecordFunction& span, ThreadPosition& here) { here.callers.push_back(span.name()); }

void end_composite(OpStreamState& state, const at::RecordFunction& span, ThreadPosition& here) {
  here.callers.pop_back();
  if (!here.taken_apart.empty() && here.taken_apart.back() == here.callers.size()) here.taken_apart.pop_back();
  if (!state.wants_inner()) return;
  OpSpan around = here.innermost(span.seqNr());
  around.info = find_op(span);
  state.end_inner(around, span.name());
}

void take_apart(OpStreamState& state, const at::RecordFunction& span, const OpInfo& info,
                c10::ArrayRef<c10::IValue> inputs, ThreadPosition& here) {
  for (const c10::IValue& value : inputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.is_leaf() && tensor.requires_grad() && is_made_of_tensors(tensor))
        note_odd_operation(state, {.oddity = Oddity::odd_leaf, .tensor = tensor}, "is given", info, here);
    });
  }
  OpSpan call = here.innermost(span.seqNr());
  call.info = &info;
  call.inputs = inputs;
  state.show_taken_apart(call);
  here.taken_apart.push_back(here.callers.size());
  begin_composite(span, here);
}

// One that is kept from the observers.
void begin_unseen(const at::RecordFunction& span, ThreadPosition& here) {
  here.operations.push_back({.info = nullptr,
                             .name = span.name(),
                             .number = next_operation(),
                             .callers = here.callers.size(),
                             .differentiates = false});
}

void end_unseen(const at::RecordFunction& span, ThreadPosition& here) {
  HostCalls* const host = here.operations.back().is_own ? HostCalls::current() : nullptr;
  const OpInfo* const info = host == nullptr ? nullptr : find_op(span);
  if (info != nullptr) host->note_own_results(outputs_of(span, *info));
  here.operations.pop_back();
}

void begin_odd(OpStreamState& state, const at::RecordFunction& span, const OpInfo& info, const OddOperation& odd,
               ThreadPosition& here) {
  state.let_host_allocate(false);
  if (odd.oddity == Oddity::dispatch_mode && is_compiling()) {
    state.note_odd(Oddity::compiling, "torch.compile compiles code while the step runs", span.name(), here);
  } else if (here.taken_apart.empty() || odd.oddity != Oddity::dispatch_mode || !computes_shapes_alone()) {
    note_odd_operation(state, odd, "is given", info, here);
  }
  begin_unseen(span, here);
}

void begin_operation(OpStreamState& state, const at::RecordFunction& span, const OpInfo& info,
                     c10::ArrayRef<c10::IValue> inputs, ThreadPosition& here) {
  here.operations.push_back({.info = &info,
                             .name = span.name(),
                             .number = next_operation(),
                             .callers = here.callers.size(),
                             .differentiates = info.differentiates_now(inputs),
                             .waits = is_waited_for(info, inputs),
                             .fills_buffers = CollectiveBuffers::are_made_by(info, inputs)});
  OpSpan op = here.innermost(span.seqNr());
  op.inputs = inputs;
  state.begin_op(op);
}

void end_operation(OpStreamState& state, const at::RecordFunction& span, ThreadPosition& here) {
  OpSpan op = here.innermost(span.seqNr());
  const bool is_outermost = here.operations.size() == 1;
  if (is_outermost) state.let_host_allocate(true);
  if (op.info == nullptr) return end_unseen(span, here);
  op.outputs = outputs_of(span, *op.info);
  if (here.operations.back().waits && !waits_until_done(op.outputs, state.patience()))
    note_late_rank(state, *op.info, here);
  if (const OddOperation odd = odd_tensor_in(op.outputs); odd.oddity != Oddity::none) {
    note_odd_operation(state, odd, "makes", *op.info, here);
    op.outputs = {};  // as if it threw: there is nothing that an observer could look at
  }
  here.operations.pop_back();  // before the observers: one that throws must not leave the operation open
  state.end_op(op);
}

// What is not hidden in the kernel of another.
void begin_call(OpStreamState& state, const at::RecordFunction& span, const OpInfo& info, ThreadPosition& here) {
  if (is_of_a_transform()) return begin_composite(span, here);
  const c10::ArrayRef<c10::IValue> inputs = inputs_of(span, info);
  const OddOperation odd = oddity_of_call(inputs);
  if (is_left_by_a_transform(odd.tensor)) return begin_composite(span, here);
  if (odd.oddity == Oddity::subclass && is_taken_apart_by_python(odd.tensor))
    return take_apart(state, span, info, inputs, here);
  if (odd.oddity != Oddity::none) return begin_odd(state, span, info, odd, here);
  if (info.collective) note_collective(state, info, here);
  if (resizes_for_users()) [[unlikely]]
    state.note_odd(Oddity::resized, "the step resizes a storage, whose memory a graph would use as it was", span.name(),
                   here);
  if (info.transparent_now(inputs) || (CallGate::is_open() && CallGate::makes_of_others(info, inputs)))
    return begin_composite(span, here);
  state.let_host_allocate(false);
  if (state.reads_buffers(inputs)) return begin_unseen(span, here);
  if (HostCalls* host = HostCalls::current(); host != nullptr && host->owns(info, inputs)) {
    host->note_own(info, inputs);
    begin_unseen(span, here);
    here.operations.back().is_own = true;
    return;
  }
  begin_operation(state, span, info, inputs, here);
}

// What was called in the kernel of an operation.
void end_hidden(OpStreamState& state, const at::RecordFunction& span, const ThreadPosition& here) {
  const OpenOperation& operation = here.operations.back();
  const bool is_told = state.wants_inner() && operation.info != nullptr;
  if (!is_told && !operation.fills_buffers) return;
  const OpInfo* const hidden = is_call(span) ? find_op(span) : nullptr;
  if (operation.fills_buffers && hidden != nullptr && hidden->is_empty) state.note_buffers(outputs_of(span, *hidden));
  if (!is_told) return;
  const OpSpan around = here.innermost(span.seqNr());
  if (hidden != nullptr) state.note_hidden(around, *hidden, outputs_of(span, *hidden));
  state.end_inner(around, span.name());
}

std::unique_ptr<at::ObserverContext> begin_span(const at::RecordFunction& span) {
  OpStreamState* const state = ObserversRun::on_this_thread() ? nullptr : OpStreamState::current();
  if (state == nullptr || is_nobodys(span)) return nullptr;
  ThreadPosition& here = state->position();
  if (here.in_kernel()) {
    ++here.hidden;
    return nullptr;
  }
  if (!is_call(span)) {
    begin_scope(*state, span, here);
    return std::make_unique<ScopeContext>(state->recording());
  }
  const OpInfo* const info = find_op(span);
  if (info == nullptr) {
    note_span(*state, span.name(), oddity_of_span(span.name()), here);
  } else if (!info->name.starts_with("profiler::")) {
    begin_call(*state, span, *info, here);
  }
  return nullptr;
}

void end_span(const at::RecordFunction& span, at::ObserverContext* context) {
  OpStreamState* const state = ObserversRun::on_this_thread() ? nullptr : OpStreamState::current();
  if (state == nullptr || is_nobodys(span)) return;
  ThreadPosition& here = state->position();
  if (here.hidden > 0) {
    --here.hidden;
    end_hidden(*state, span, here);
  } else if (!is_call(span)) {
    const auto* scope = static_cast<const ScopeContext*>(context);
    if (scope != nullptr && scope->recording == state->recording()) end_scope(*state, span, here);
  } else if (here.ends_operation(span.name())) {
    end_operation(*state, span, here);
  } else if (here.ends_composite(span.name())) {
    end_composite(*state, span, here);
  }
}

void note_failure(const at::RecordFunction& span) {
  if (OpStreamState* const state = OpStreamState::current(); state != nullptr) state->failure().note(span.name());
}

// The same, but nothing is thrown; see Note [An observer that throws].
std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& span) {
  try {
    return begin_span(span);
  } catch (...) {
    note_failure(span);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& span, at::ObserverContext* context) {
  try {
    end_span(span, context);
  } catch (...) {
    note_failure(span);
  }
}

}  // namespace

at::CallbackHandle add_op_callbacks(bool needs_outputs) {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_begin, &on_end)
          .needsInputs(true)
          .needsOutputs(needs_outputs)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

}  // namespace pianola::trace
