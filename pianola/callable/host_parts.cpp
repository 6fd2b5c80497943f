#include <pianola/callable/host_parts.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/trace/alias.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/host_numbers.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/uses_values.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/Functions.h>
#include <ATen/core/enum_tag.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace pianola::callable {
namespace {

thread_local HostParts* open_parts = nullptr;

// What an allocation returns a replay has to return, too.
bool only_describes(const trace::OpInfo& op) { return !trace::uses_values(op) && !op.is_empty; }

// zero_grad() detaches gradients, which have no shape to lose.
bool changes_shape_in_place(const trace::OpInfo& op) {
  return op.handle.hasTag(at::Tag::inplace_view) && op.name != "aten::detach_";
}

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

bool is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    if (const auto number = trace::wrapped_number(a)) return trace::wrapped_number(b) == number;
    return is_same_tensor(a.toTensor(), b.toTensor());
  }
  if (a.isList() && b.isList()) {
    const auto left = a.toListRef(), right = b.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), is_same);
  }
  return a.tagKind() == b.tagKind() && c10::_fastEqualsForContainer(a, b);
}

c10::Storage copy_of_memory(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  at::Tensor all = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
  all.set_(tensor.storage(), 0, {bytes});
  return all.clone().storage();
}

bool has_history(c10::ArrayRef<c10::IValue> outputs) {
  bool any = false;
  for (const c10::IValue& output : outputs) {
    trace::for_each_tensor(output, [&](const at::Tensor& tensor) { any = any || tensor.grad_fn() != nullptr; });
  }
  return any;
}

at::Tensor copy_of(const at::Tensor& number) {
  const trace::QuietScope quiet;
  return number.clone();
}

bool have_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(trace::address_of(a), trace::address_of(b), a.itemsize()) == 0;
}

c10::IValue zero_of(c10::ScalarType type) {
  if (type == at::kBool) return false;
  if (c10::isIntegralType(type, /*includeBool=*/false)) return std::int64_t{0};
  return c10::isComplexType(type) ? c10::IValue(c10::complex<double>(0)) : c10::IValue(0.0);
}

// What the call returned when it was captured, in place of its arguments.
void answer(const HostPartCall& call, torch::jit::Stack& stack) {
  torch::jit::Stack results = call.outputs;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (call.returned[i] >= 0) {
      results[i] = torch::jit::peek(stack, static_cast<std::size_t>(call.returned[i]), call.inputs.size());
    }
  }
  torch::jit::drop(stack, call.inputs.size());
  stack.insert(stack.end(), results.begin(), results.end());
}

}  // namespace

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

  // What was only described anew.
  void note_given(c10::ArrayRef<c10::IValue> values) {
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
        call.inputs[i] = copy_of(inputs[i].toTensor());
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

bool HostPart::rerun(const HostPartListener& listener) {
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
  return !rerun.is_live;
}

bool HostPart::reads_as_captured(const std::function<void(std::size_t operation)>& reach) const {
  if (ran_half_) return false;
  const trace::QuietScope quiet;
  return std::none_of(reads_.begin(), reads_.end(), [&](const HostPartRead& read) {
    reach(read.operation);
    return read.tensor.is_nonzero();
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
  for (HostPartCall& call : calls_) {
    for (c10::IValue& output : call.outputs) {
      bool is_held = false;
      trace::for_each_tensor(output, [&](const at::Tensor& tensor) {
        if (tensor.use_count() == 1 || !made_.contains(trace::storage_of(tensor))) return;
        held.push_back(tensor);
        is_held = true;
      });
      if (is_held) output = trace::alias_values(output);
    }
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

HostParts::Open::Open(HostParts& parts) : parts_(parts), outer_(open_parts) { open_parts = &parts; }

// A part that threw has not ended.
HostParts::Open::~Open() {
  parts_.end(0);
  open_parts = outer_;
}

HostParts* HostParts::current() noexcept { return open_parts; }

int HostParts::begin(c10::Device device, HostPartOptions options) {
  if (depth_++ > 0) {
    let_read(false);
    return depth_ - 1;
  }
  for (const at::Tensor& parameter : options.parameters) {
    parameters_.emplace_back(parameter.getIntrusivePtr());
    placed_.emplace_back(parameters_.back(), trace::storage_of(parameter));
  }
  active_ = static_cast<bool>(options.run);
  if (active_) {
    HostPart& part = parts_.emplace_back(std::move(options.run), calls_);
    part.first_ = operations_ + 1;
    if (is_capture_) {
      part.ran_half_ = options.runs_half;
      if (options.save) part.undo_ = options.save();
      part.values_before_ = calls_->values();
    }
    for (const at::Tensor& parameter : options.parameters) {
      const at::Tensor& gradient = parameter.grad();
      part.gradients_.push_back({.parameter = trace::WeakTensor(parameter.getIntrusivePtr()),
                                 .value = gradient.defined() ? trace::alias_of(gradient) : at::Tensor()});
    }
  } else {
    passive_.push_back(std::move(options.on_varying));
  }
  scope_ = std::make_unique<trace::HostCalls::Scope>(*calls_, device, active_);
  reads_ = active_ && options.reads;
  let_read(reads_);
  return 0;
}

// An optimizer that a scaler steps reads for itself.
void HostParts::let_read(bool lets) {
  calls_->let_read(lets);
  gate_.reset();
  if (lets) gate_.emplace([this](const trace::OpInfo& op, torch::jit::Stack& stack) { on_call(op, stack); });
}

void HostParts::on_call(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const auto inputs = torch::jit::last(stack, op.schema().arguments().size());
  if (!calls_->is_read(op, inputs)) return trace::CallGate::run(op, stack);
  const at::Tensor tensor = trace::alias_of(inputs[0].toTensor());
  HostPart& part = parts_.back();
  part.reads_.push_back({.call = part.calls_.size(), .operation = operations_, .tensor = tensor});
  if (is_recording()) {
    torch::jit::drop(stack, inputs.size());
    stack.push_back(zero_of(tensor.scalar_type()));
    return;
  }
  trace::CallGate::run(op, stack);
  const trace::QuietScope quiet;
  read_otherwise_ = read_otherwise_ || tensor.is_nonzero();
}

bool HostParts::end(int depth) {
  while (depth_ > depth) end_innermost();
  return depth_ == 0 && active_ && makes_history_;
}

void HostParts::end_innermost() {
  --depth_;
  let_read(reads_ && depth_ == 1);
  if (depth_ > 0) return;
  if (active_) parts_.back().last_ = operations_;
  for (const auto& [weak, memory] : std::exchange(placed_, {})) {
    const at::Tensor parameter(weak.lock());
    moves_parameters_ = moves_parameters_ || (parameter.defined() && trace::storage_of(parameter) != memory);
  }
  scope_.reset();
  running_.clear();
}

void HostParts::on_op_begin(const trace::OpSpan& op) {
  calls_->on_op_begin(op);
  ++operations_;
  if (!scope_ || !active_) return;
  makes_history_ = makes_history_ || op.backward != nullptr;
  draws_where_it_reads_ = draws_where_it_reads_ || (reads_ && op.info->seeded);
  describes_in_place_ = describes_in_place_ || changes_shape_in_place(*op.info);
  if (op.around != 0 || only_describes(*op.info)) return;
  std::vector<HostPartCall>& calls = parts_.back().calls_;
  Running& running = running_.emplace_back(Running{.number = op.number, .call = calls.size(), .arguments = {}});
  HostPartCall& call = calls.emplace_back(HostPartCall{.op = op.info, .operation = operations_, .inputs = {}});
  for (const c10::IValue& input : op.inputs) {
    running.arguments.push_back(input.isTensor() ? input.toTensor().unsafeGetTensorImpl() : nullptr);
    const bool is_host_number =
        input.isTensor() && input.toTensor().defined() && op.memory->is_host_number(input.toTensor());
    call.inputs.push_back(is_host_number ? c10::IValue(copy_of(input.toTensor())) : trace::alias_values(input));
    call.is_host_number.push_back(is_host_number);
    parts_.back().has_host_numbers_ = parts_.back().has_host_numbers_ || is_host_number;
  }
}

bool HostParts::must_be_active() const {
  if (passive_.empty()) return false;
  return calls_->had_any() || holds_results_of_passive();
}

// A tape holds the memory of all results: in a capture, whoever got one is asked for.
bool HostParts::holds_results_of_passive() const {
  if (is_capture_) {
    return std::any_of(passive_given_.begin(), passive_given_.end(), [](const auto& weak) { return !weak.expired(); });
  }
  bool is_held = false;
  passive_made_.for_each_alive([&](const auto&) { is_held = true; });
  return is_held;
}

void HostParts::note_made(const trace::OpSpan& op) {
  for (const c10::IValue& output : op.outputs) {
    trace::for_each_tensor(output, [&](const at::Tensor& tensor) {
      if (op.memory->makes(op, trace::storage_of(tensor))) {
        made_.insert(tensor.storage());
        (active_ ? parts_.back().made_ : passive_made_).insert(tensor.storage());
      }
      const trace::StorageSet& made = active_ ? parts_.back().made_ : passive_made_;
      if (!made.contains(trace::storage_of(tensor))) return;
      (active_ ? parts_.back().given_ : passive_given_).emplace_back(tensor.getIntrusivePtr());
    });
  }
}

void HostParts::on_op_end(const trace::OpSpan& op) {
  calls_->on_op_end(op);
  if (scope_) note_made(op);
  if (scope_ && active_) makes_history_ = makes_history_ || has_history(op.outputs);
  if (running_.empty() || running_.back().number != op.number) return;
  const Running running = std::move(running_.back());
  running_.pop_back();
  HostPartCall& call = parts_.back().calls_[running.call];
  for (const c10::IValue& output : op.outputs) {
    const auto argument = output.isTensor() ? std::find(running.arguments.begin(), running.arguments.end(),
                                                        output.toTensor().unsafeGetTensorImpl())
                                            : running.arguments.end();
    const bool is_argument = argument != running.arguments.end();
    call.returned.push_back(is_argument ? static_cast<int>(argument - running.arguments.begin()) : -1);
    call.outputs.push_back(is_argument ? c10::IValue() : trace::alias_values(output));
  }
}

std::vector<at::Tensor> HostParts::parameters() const {
  std::vector<at::Tensor> alive;
  for (const trace::WeakTensor& weak : parameters_) {
    if (auto parameter = weak.lock()) alive.emplace_back(std::move(parameter));
  }
  return alive;
}

void HostParts::put_back() const {
  std::for_each(parts_.rbegin(), parts_.rend(), [](const HostPart& part) { part.take_back(); });
  calls_->put_back();
}

std::optional<Diagnosis> HostParts::obstacle() const {
  if (makes_history_) {
    return Diagnosis{
        .what =
            "an optimizer's step, or a method that counts on the host, computes what autograd differentiates; "
            "a replay, which runs it again for its numbers, could not",
        .fix = "let it compute under torch.no_grad(), or keep its count in a tensor on the device",
        .rule = "PG110"};
  }
  if (moves_parameters_) {
    return Diagnosis{.what = "the optimizer gives parameters other memory (p.data = ...), which a graph would not read",
                     .fix = "change them in place: p.data.copy_(...), p.sub_(...)",
                     .rule = "PG401"};
  }
  if (draws_where_it_reads_) {
    return Diagnosis{.what =
                         "a step that a scaler may leave out draws random numbers; a replay would count them where it "
                         "is left out",
                     .fix = "draw outside of the optimizer's step",
                     .rule = "PG110"};
  }
  if (describes_in_place_) {
    return Diagnosis{.what =
                         "an optimizer's step, or a method that counts on the host, changes the shape of a tensor in "
                         "place; a replay would not",
                     .fix = "make a view of it, or another tensor",
                     .rule = "PG110"};
  }
  if (!calls_->are_mixed()) return std::nullopt;
  return Diagnosis{.what = "the optimizer reads a tensor on the host that operations of the step compute",
                   .fix = "keep the value on the device, or leave the optimizer's step out of the function",
                   .rule = "PG110"};
}

}  // namespace pianola::callable
