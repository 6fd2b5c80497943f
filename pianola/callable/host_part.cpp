#include <pianola/callable/host_part.hpp>

#include <pianola/callable/live_calls.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/trace/alias.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/host_numbers.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/uses_values.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace pianola::callable {
namespace {

bool is_number(const c10::Argument& argument, const c10::IValue& value) {
  if (trace::wrapped_number(value)) return true;
  const auto is_type = [](const c10::Type& type) {
    return type.kind() == c10::TypeKind::NumberType || type.kind() == c10::TypeKind::FloatType;
  };
  const c10::Type* type = argument.type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  if (const auto* list = type->castRaw<c10::ListType>()) return is_type(*list->getElementType());
  return is_type(*type);
}

// Both are numbers, or lists of them, of the same types.
bool are_alike(const c10::IValue& a, const c10::IValue& b) {
  if (const auto number = trace::wrapped_number(a)) {
    const auto other = trace::wrapped_number(b);
    return other && number->index() == other->index();
  }
  if (!a.isList()) return a.tagKind() == b.tagKind();
  if (!b.isList()) return false;
  const auto left = a.toListRef(), right = b.toListRef();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), are_alike);
}

bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return trace::storage_of(a) != nullptr && trace::storage_of(a) == trace::storage_of(b) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool have_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(trace::address_of(a), trace::address_of(b), a.itemsize()) == 0;
}

bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    if (const auto number = trace::wrapped_number(a)) {
      return trace::wrapped_number(b) == number && have_same_bytes(a.toTensor(), b.toTensor());
    }
    return is_same_tensor(a.toTensor(), b.toTensor());
  }
  if (a.isList() && b.isList()) {
    const auto left = a.toListRef(), right = b.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), is_same);
  }
  if (a.isDouble() && b.isDouble()) return graph::same_number(a, b);
  return a.tagKind() == b.tagKind() && c10::_fastEqualsForContainer(a, b);
}

c10::Storage copy_of_memory(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  at::Tensor all = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
  all.set_(tensor.storage(), 0, {bytes});
  return all.clone().storage();
}

}  // namespace

bool only_describes(const trace::OpInfo& op) { return !trace::uses_values(op) && !op.is_empty; }

at::Tensor copy_of_number(const at::Tensor& number) {
  const trace::QuietScope quiet;
  return number.clone();
}

// One run of a part whose calls come to a gate.
struct HostPart::Rerun {
  HostPart& part;
  const HostPartListener& listener;
  std::size_t next = 0;
  std::size_t next_read = 0;
  bool is_live = false;
  std::optional<trace::AllocationLog> allocations = std::nullopt;  // where the part gives numbers as tensors
  trace::HostNumbers numbers = {};
  trace::StorageSet computed = {};  // by calls of the host's own

  void listen_to_allocations() { numbers.listen_to(&allocations.emplace(trace::AllocationLog::Of::cpu)); }

  void make(const trace::OpInfo& op, torch::jit::Stack& stack) {
    if (!allocations) return trace::CallGate::run(op, stack);
    numbers.note_writes(op, torch::jit::last(stack, op.schema().arguments().size()));
    allocations->pause(true);
    try {
      trace::CallGate::run(op, stack);
    } catch (...) {
      allocations->pause(false);
      throw;
    }
    allocations->pause(false);
  }

  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack) {
    const auto inputs = torch::jit::last(stack, op.schema().arguments().size());
    if (is_live || op.name.starts_with("profiler::")) return make(op, stack);
    if (is_expected_read(op, inputs)) {
      listener.read(part.reads_[next_read++].operation);
      return make(op, stack);
    }
    if (is_expected(op, inputs)) {
      HostPartCall& call = part.calls_[next++];
      take_numbers(call, inputs);
      return answer(call, stack);
    }
    if (part.own_->owns(op, inputs, &computed)) return make_own(op, stack);
    if (!only_describes(op)) {
      is_live = true;
      listener.diverged(next_operation(), difference(op));
    }
    const std::size_t below = stack.size() - op.schema().arguments().size();
    make(op, stack);
    if (!is_live) note_given(c10::ArrayRef<c10::IValue>(stack).slice(below));
  }

  // What the call returned when it was captured, in place of its arguments: other tensors in each run, so that it is known who
  // holds one afterwards.
  void answer(const HostPartCall& call, torch::jit::Stack& stack) const {
    torch::jit::Stack results;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.returned[i] >= 0) {
        results.push_back(torch::jit::peek(stack, static_cast<std::size_t>(call.returned[i]), call.inputs.size()));
      } else {
        results.push_back(trace::alias_values(call.outputs[i]));
      }
    }
    torch::jit::drop(stack, call.inputs.size());
    note_given(results);
    stack.insert(stack.end(), results.begin(), results.end());
  }

  // What was only described anew.
  void note_given(c10::ArrayRef<c10::IValue> values) const {
    for (const c10::IValue& value : values) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (part.made_.contains(trace::storage_of(tensor))) part.given_.emplace_back(tensor.getIntrusivePtr());
      });
    }
  }

  void make_own(const trace::OpInfo& op, torch::jit::Stack& stack) {
    const std::size_t below = stack.size() - op.schema().arguments().size();
    note_computed(torch::jit::last(stack, op.schema().arguments().size()));
    make(op, stack);
    note_computed(c10::ArrayRef<c10::IValue>(stack).slice(below));
  }

  void note_computed(c10::ArrayRef<c10::IValue> values) {
    for (const c10::IValue& value : values) {
      trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.has_storage() && tensor.is_cpu()) computed.insert(tensor.storage());
      });
    }
  }

  [[nodiscard]] bool is_expected_read(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const {
    if (next_read == part.reads_.size() || op.host_read != trace::HostRead::always || !inputs[0].isTensor())
      return false;
    const HostPartRead& read = part.reads_[next_read];
    return read.call == next && is_same_tensor(read.tensor, inputs[0].toTensor());
  }

  /// Since its last read it did nothing.
  [[nodiscard]] bool has_stopped_at_read() const {
    return next_read != 0 && next_read == part.reads_.size() && part.reads_[next_read - 1].call == next;
  }

  // "aten::mul.Tensor in place of aten::add.Tensor".
  [[nodiscard]] std::string difference(const trace::OpInfo& op) const {
    if (next == part.calls_.size()) return fmt::format("{} after all that was captured", op.name);
    const trace::OpInfo& expected = *part.calls_[next].op;
    if (&op == &expected) return fmt::format("{} on other tensors, or with an argument of another type", op.name);
    return fmt::format("{} in place of {}", op.name, expected.name);
  }

  [[nodiscard]] std::size_t next_operation() const {
    return next < part.calls_.size() ? part.calls_[next].operation : part.last_ + 1;
  }

  [[nodiscard]] bool is_expected(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const {
    if (next == part.calls_.size()) return false;
    const HostPartCall& call = part.calls_[next];
    if (call.op != &op) return false;
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (call.is_host_number[i]) {
        if (!is_host_number_like(call.inputs[i].toTensor(), inputs[i])) return false;
        if (have_same_bytes(call.inputs[i].toTensor(), inputs[i].toTensor())) continue;
      } else {
        if (is_same(call.inputs[i], inputs[i])) continue;
        if (graph::makes_shapes(op)) return false;
        if (!is_number(arguments[i], call.inputs[i]) || !are_alike(call.inputs[i], inputs[i])) return false;
      }
      if (!listener.can_set(call.operation, i)) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_host_number_like(const at::Tensor& captured, const c10::IValue& value) const {
    if (!value.isTensor() || !value.toTensor().defined()) return false;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.scalar_type() != captured.scalar_type()) return false;
    return numbers.contains(tensor) || (computed.contains(trace::storage_of(tensor)) && trace::is_number(tensor));
  }

  void take_numbers(HostPartCall& call, c10::ArrayRef<c10::IValue> inputs) const {
    const auto& arguments = call.op->schema().arguments();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (call.is_host_number[i]) {
        if (have_same_bytes(call.inputs[i].toTensor(), inputs[i].toTensor())) continue;
        call.inputs[i] = copy_of_number(inputs[i].toTensor());
        listener.number({.operation = call.operation, .argument = i, .value = call.inputs[i]});
        continue;
      }
      if (!is_number(arguments[i], inputs[i]) || is_same(call.inputs[i], inputs[i])) continue;
      call.inputs[i] = inputs[i];
      listener.number({.operation = call.operation, .argument = i, .value = inputs[i]});
    }
  }
};

// While a part runs again, parameters have the gradients of the capture: it asks which have one, and operations on them are
// recognised by their memory.
class HostPart::Gradients {
 public:
  explicit Gradients(const std::vector<Gradient>& wanted) {
    for (const auto& [weak, value] : wanted) {
      at::Tensor parameter(weak.lock());
      if (!parameter.defined()) continue;
      at::Tensor& now = parameter.mutable_grad();
      if (now.defined() == value.defined() && is_same_tensor(now, value)) continue;
      replaced_.emplace_back(std::move(parameter), std::exchange(now, value));
    }
  }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  ~Gradients() {
    for (auto& [parameter, value] : replaced_) parameter.mutable_grad() = std::move(value);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;
};

bool HostPart::take_shortcut(const HostPartListener& listener) {
  const auto numbers = shortcut_->numbers();
  if (!numbers) return false;
  const auto is_new = [&](const HostPartNumber& number) {
    return !is_same(calls_[number.call].inputs[number.argument], number.value);
  };
  for (const HostPartNumber& number : *numbers) {
    if (is_new(number) && !listener.can_set(calls_[number.call].operation, number.argument)) return false;
  }
  for (const HostPartNumber& number : *numbers) {
    if (!is_new(number)) continue;
    HostPartCall& call = calls_[number.call];
    call.inputs[number.argument] = number.value;
    listener.number({.operation = call.operation, .argument = number.argument, .value = number.value});
  }
  shortcut_->finish();
  return true;
}

void HostPart::run_live(const HostPartListener& listener) {
  listener.left_out(first_);
  const Gradients gradients(gradients_);
  LiveCalls calls(calls_, *own_);
  {
    const trace::OpStream stream({&calls});
    run_();
  }
  if (shortcut_ != nullptr && calls.are_as_captured()) shortcut_->learn(calls.all());
}

bool HostPart::rerun(const HostPartListener& listener) {
  if (shortcut_ != nullptr && take_shortcut(listener)) return true;
  if (runs_live_) {
    run_live(listener);
    return true;
  }
  Rerun rerun{.part = *this, .listener = listener};
  const Gradients gradients(gradients_);
  if (has_host_numbers_) rerun.listen_to_allocations();
  try {
    const trace::CallGate gate([&](const trace::OpInfo& op, torch::jit::Stack& stack) { rerun.on_call(op, stack); });
    run_();
  } catch (...) {  // the step has come as far as this
    if (!rerun.is_live) listener.diverged(rerun.next_operation(), "an error in place of the rest");
    throw;
  }
  if (!rerun.is_live && rerun.next != calls_.size()) {
    if (rerun.has_stopped_at_read()) {
      listener.left_out(rerun.next_operation());
      return true;
    }
    rerun.is_live = true;
    listener.diverged(rerun.next_operation(), fmt::format("nothing in place of {}", calls_[rerun.next].op->name));
  }
  if (!rerun.is_live && shortcut_ != nullptr) shortcut_->learn(calls_);
  return !rerun.is_live;
}

bool HostPart::reads_as_captured(const std::function<void(std::size_t operation)>& reach) const {
  if (ran_half_) return false;
  const trace::QuietScope quiet;
  return std::all_of(reads_.begin(), reads_.end(), [&](const HostPartRead& read) {
    reach(read.operation);
    return graph::same_number(c10::IValue(read.tensor.item()), read.value);
  });
}

void HostPart::take_back() const {
  if (undo_) undo_();
}

void HostPart::keep() {
  undo_ = {};
  values_before_.clear();
}

void HostPart::hand_out() {
  std::vector<at::Tensor> held;
  for (const trace::WeakTensor& weak : std::exchange(given_, {})) {
    if (auto alive = weak.lock()) held.emplace_back(std::move(alive));
  }
  if (held.empty()) return;
  const trace::QuietScope quiet;
  std::vector<std::pair<c10::Storage, c10::Storage>> copies;  // what shares memory goes on to
  for (const at::Tensor& tensor : held) {
    const c10::Storage& memory = tensor.storage();
    auto copy =
        std::find_if(copies.begin(), copies.end(), [&](const auto& one) { return one.first.is_alias_of(memory); });
    if (copy == copies.end()) copy = copies.insert(copies.end(), {memory, copy_of_memory(tensor)});
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(copy->second);
  }
}

}  // namespace pianola::callable
