#include <pianola/callable/host_parts.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/trace/alias.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>

namespace pianola::callable {
namespace {

constexpr std::size_t kMostPieces = 16;  // that a graph is launched in
constexpr std::size_t kMostReads = 1024;

thread_local HostParts* open_parts = nullptr;

// zero_grad() detaches gradients, which have no shape to lose.
bool changes_shape_in_place(const trace::OpInfo& op) {
  return op.handle.hasTag(at::Tag::inplace_view) && op.name != "aten::detach_";
}

bool has_history(c10::ArrayRef<c10::IValue> outputs) {
  bool any = false;
  for (const c10::IValue& output : outputs) {
    trace::for_each_tensor(output, [&](const at::Tensor& tensor) { any = any || tensor.grad_fn() != nullptr; });
  }
  return any;
}

c10::IValue zero_of(c10::ScalarType type) {
  if (type == at::kBool) return false;
  if (c10::isIntegralType(type, /*includeBool=*/false)) return std::int64_t{0};
  return c10::isComplexType(type) ? c10::IValue(c10::complex<double>(0)) : c10::IValue(0.0);
}

bool is_zero(const c10::IValue& value) {
  if (value.isBool()) return !value.toBool();
  if (value.isInt()) return value.toInt() == 0;
  return value.isDouble() ? value.toDouble() == 0 : value.toComplexDouble() == c10::complex<double>(0);
}

}  // namespace

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
    if (!options.may_run_twice) parameters_of_users_code_.push_back(parameters_.back());
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.has_storage()) gradients_found_.insert(trace::storage_of(gradient));
    placed_.emplace_back(parameters_.back(), trace::storage_of(parameter));
  }
  active_ = static_cast<bool>(options.run);
  is_of_gpu_ = !device.is_cpu();
  runs_twice_ = runs_twice_ || (has_read_values_ && !options.may_run_twice);
  if (active_) {
    HostPart& part = parts_.emplace_back(std::move(options.run), calls_);
    part.first_ = writes_.operations() + 1;
    part.shortcut_ = std::move(options.shortcut);
    if (is_capture_) {
      part.ran_half_ = options.runs_half;
      if (options.save) part.undo_ = options.save();
      part.values_before_ = calls_->values();
    }
    for (const at::Tensor& parameter : options.parameters) {
      part.runs_live_ = part.runs_live_ || trace::is_made_of_tensors(parameter);
      const at::Tensor& gradient = parameter.grad();
      part.gradients_.push_back({.parameter = trace::WeakTensor(parameter.getIntrusivePtr()),
                                 .value = gradient.defined() ? trace::alias_of(gradient) : at::Tensor()});
    }
  } else {
    passive_.push_back(std::move(options.on_varying));
    if (is_capture_ && options.save) passive_undo_.push_back(options.save());
  }
  scope_ = std::make_unique<trace::HostCalls::Scope>(*calls_, device, active_);
  // On the tape, what a part reads is a count as well as any value: it is the host's own.
  const bool may_read = options.reads == HostPartReads::values ? is_of_gpu_ : active_;
  reads_ = may_read ? options.reads : HostPartReads::nothing;
  let_read(true);
  return 0;
}

// An optimizer that a scaler steps reads for itself.
void HostParts::let_read(bool may_read) {
  const bool lets =
      may_read && reads_ != HostPartReads::nothing && pieces_ < kMostPieces && values_read_.size() < kMostReads;
  calls_->let_read(lets);
  gate_.reset();
  const bool may_copy_numbers = depth_ > 0 && active_ && is_of_gpu_;
  if (lets || may_copy_numbers)
    gate_.emplace([this](const trace::OpInfo& op, torch::jit::Stack& stack) { on_call(op, stack); });
}

void HostParts::on_call(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const auto inputs = torch::jit::last(stack, op.schema().arguments().size());
  if (const at::Tensor* const copied = trace::copied_from_host(op, inputs); copied && calls_->gives(*copied)) {
    if (auto given = trace::number_given(op, inputs)) {
      torch::jit::drop(stack, inputs.size());
      stack.insert(stack.end(), given->inputs.begin(), given->inputs.end());
      const at::AutoDispatchBelowAutograd inside_the_copy;  // it is no operation of its own
      return given->op->handle.callBoxed(stack);
    }
  }
  if (!calls_->is_read(op, inputs)) return trace::CallGate::run(op, stack);
  on_read(op, stack);
}

void HostParts::on_read(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const at::Tensor tensor = trace::alias_of(torch::jit::peek(stack, 0, 1).toTensor());
  if (is_recording()) {
    torch::jit::drop(stack, 1);
    const std::size_t index = values_read_.size();
    const c10::IValue zero = zero_of(tensor.scalar_type());
    const bool is_known =
        reads_ == HostPartReads::values && index < expected_.size() && expected_[index].tagKind() == zero.tagKind();
    stack.push_back(is_known ? expected_[index] : zero);
  } else {
    trace::CallGate::run(op, stack);
  }
  values_read_.push_back(stack.back());
  if (active_) {
    HostPart& part = parts_.back();
    // Kernels that no operator launches may write what a scaler reads.
    const std::size_t operation =
        reads_ == HostPartReads::overflow ? writes_.operations() : writes_.last_write_to(tensor);
    const bool is_piece = operation > (part.reads_.empty() ? 0 : part.reads_.back().operation);
    pieces_ += is_piece ? 1 : 0;
    part.reads_.push_back(
        {.call = part.calls_.size(), .operation = operation, .tensor = tensor, .value = stack.back()});
  }
  has_read_values_ = has_read_values_ || reads_ == HostPartReads::values;
  reads_in_passive_ = reads_in_passive_ || !active_;
  if (pieces_ == kMostPieces || values_read_.size() == kMostReads) calls_->let_read(false);  // refused as of any step
  read_overflow_ = read_overflow_ || (reads_ == HostPartReads::overflow && !is_zero(stack.back()));
}

bool HostParts::end(int depth) {
  while (depth_ > depth) end_innermost();
  return depth_ == 0 && active_ && makes_history_;
}

void HostParts::end_innermost() {
  --depth_;
  let_read(depth_ == 1);
  if (depth_ > 0) return;
  if (active_) {
    HostPart& part = parts_.back();
    part.last_ = writes_.operations();
    if (part.reads() || part.has_host_numbers_) part.shortcut_.reset();
  }
  for (const auto& [weak, memory] : std::exchange(placed_, {})) {
    const at::Tensor parameter(weak.lock());
    moves_parameters_ = moves_parameters_ || (parameter.defined() && trace::storage_of(parameter) != memory);
  }
  scope_.reset();
  running_.clear();
}

void HostParts::on_op_begin(const trace::OpSpan& op) {
  calls_->on_op_begin(op);
  writes_.on_op_begin(op);
  if (!scope_ || !active_) return;
  makes_history_ = makes_history_ || op.backward != nullptr;
  draws_where_it_reads_ = draws_where_it_reads_ || (reads_ == HostPartReads::overflow && op.info->seeded);
  describes_in_place_ = describes_in_place_ || changes_shape_in_place(*op.info);
  if (op.around != 0 || only_describes(*op.info)) return;
  std::vector<HostPartCall>& calls = parts_.back().calls_;
  Running& running = running_.emplace_back(Running{.number = op.number, .call = calls.size(), .arguments = {}});
  HostPartCall& call = calls.emplace_back(HostPartCall{.op = op.info, .operation = writes_.operations(), .inputs = {}});
  for (const c10::IValue& input : op.inputs) {
    running.arguments.push_back(input.isTensor() ? input.toTensor().unsafeGetTensorImpl() : nullptr);
    const bool is_host_number =
        input.isTensor() && input.toTensor().defined() && op.memory->is_host_number(input.toTensor());
    call.inputs.push_back(is_host_number ? c10::IValue(copy_of_number(input.toTensor())) : trace::alias_values(input));
    call.is_host_number.push_back(is_host_number);
    parts_.back().has_host_numbers_ = parts_.back().has_host_numbers_ || is_host_number;
  }
}

bool HostParts::must_be_active() const {
  if (passive_.empty()) return false;
  return reads_in_passive_ || calls_->had_any() || holds_results_of_passive();
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
  writes_.on_op_end(op);
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

std::vector<at::Tensor> HostParts::alive(const std::vector<trace::WeakTensor>& tensors) {
  std::vector<at::Tensor> alive;
  for (const trace::WeakTensor& weak : tensors) {
    if (auto parameter = weak.lock()) alive.emplace_back(std::move(parameter));
  }
  return alive;
}

void HostParts::put_back() const {
  std::for_each(parts_.rbegin(), parts_.rend(), [](const HostPart& part) { part.take_back(); });
  std::for_each(passive_undo_.rbegin(), passive_undo_.rend(), [](const HostPart::Run& undo) { undo(); });
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
  if (runs_twice_) {
    return Diagnosis{
        .what =
            "behind an optimizer or an average that reads a value of the device, the step calls what counts on the "
            "host: a capture, which has to take another value first, would call it twice",
        .fix = "call it before, or outside of the function",
        .rule = "PG110"};
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
