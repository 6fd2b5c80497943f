#include <pianola/callable/checked_reads.hpp>

#include <pianola/callable/host_parts.hpp>
#include <pianola/callable/structure.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/read_check.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/late_read.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/record_function.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace pianola::callable {
namespace {

using trace::HostRead;

constexpr std::size_t kMostReads = 64;

thread_local CheckedReads* open_reads = nullptr;

bool is_number(const c10::IValue& value) {
  return value.isDouble() || value.isInt() || value.isBool() || value.isComplexDouble();
}

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

bool is_index(const trace::OpInfo& op) {
  return op.host_read == HostRead::bool_index || op.host_read == HostRead::bool_index_put;
}

// Those that do not are torch's to refuse, as its index() does: a mask has the sizes of the dimensions that it stands for.
bool masks_fit(const at::Tensor& indexed, const c10::IValue& indices) {
  std::int64_t dimension = 0;
  for (const c10::IValue& entry : indices.toListRef()) {
    const at::Tensor index = entry.isTensor() ? entry.toTensor() : at::Tensor();
    const std::int64_t covered = is_mask(index) ? index.dim() : 1;
    if (dimension + covered > indexed.dim()) return false;
    if (is_mask(index) &&
        index.sizes() != indexed.sizes().slice(static_cast<std::size_t>(dimension), static_cast<std::size_t>(covered)))
      return false;
    dimension += covered;
  }
  return true;
}

const trace::OpInfo& item() {
  static const trace::OpInfo* const op =
      &trace::info_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_local_scalar_dense", ""));
  return *op;
}

// The same call with other tensors. Nobody sees it: it is no operation of the step.
c10::IValue call_quietly(const trace::OpInfo& op, torch::jit::Stack stack, const std::vector<at::Tensor>& tensors) {
  const trace::QuietScope quiet;
  std::size_t next = 0;
  for (c10::IValue& value : stack) {
    if (value.isTensor()) value = tensors.at(next++);
  }
  op.handle.callBoxed(stack);
  return stack.back();
}

}  // namespace

bool begin_alike(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other) {
  const auto count = static_cast<std::ptrdiff_t>(std::min(one.size(), other.size()));
  return std::equal(one.begin(), one.begin() + count, other.begin(), &same_constant);
}

bool same_values(const std::vector<c10::IValue>& one, const std::vector<c10::IValue>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), &same_constant);
}

CheckedReads::Open::Open(CheckedReads& reads)
    : outer_(std::exchange(open_reads, &reads)),
      gate_([&reads](const trace::OpInfo& op, torch::jit::Stack& stack) { reads.on_call(op, stack); },
            [&reads](const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) { return reads.takes(op, inputs); }) {}
CheckedReads::Open::~Open() { open_reads = outer_; }

CheckedReads* CheckedReads::current() noexcept { return open_reads; }

bool CheckedReads::is_ours(const at::Tensor& tensor) const {
  const bool is_plain = tensor.defined() && tensor.layout() == c10::kStrided &&
                        !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
  return is_plain && (device_.is_cpu() || !tensor.is_cpu());
}

// Whether on_call() makes the call of others. A stream asks as well, before the call comes by the gate: CallGate::makes_of_others().
bool CheckedReads::takes(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) const {
  if (op.host_read == HostRead::never || passes_ || values_.size() >= kMostReads) return false;
  if (op.host_read == HostRead::dynamic_shape && op.name != "aten::nonzero") return false;
  if (!inputs[0].isTensor() || !is_ours(inputs[0].toTensor()) || !trace::reads_on_host(op, inputs)) return false;
  const at::Tensor& first = inputs[0].toTensor();
  if (op.host_read == HostRead::repeats_tensor && !at::isIntegralType(first.scalar_type(), false)) return false;
  if (is_index(op) && !masks_fit(first, inputs[1])) return false;
  const HostParts* const parts = HostParts::current();
  return at::isRecordFunctionEnabled() && !trace::is_of_a_transform() && !trace::LateRead::is_open() &&
         !graph::Islands::is_running() && (parts == nullptr || !parts->is_in_part());
}

void CheckedReads::on_call(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const std::size_t size = op.schema().arguments().size();
  const auto inputs = torch::jit::last(stack, size);
  if (!takes(op, inputs)) return trace::CallGate::run(op, stack);
  c10::IValue* const arguments = &stack[stack.size() - size];
  switch (op.host_read) {
    case HostRead::always:
      return read(op, stack);
    case HostRead::dynamic_shape:
      stack.back() = places_of(inputs[0].toTensor());
      return;
    case HostRead::bool_index:
    case HostRead::bool_index_put:
      arguments[1] = without_masks(arguments[1]);
      break;
    case HostRead::repeats_tensor:
      arguments[1] = count(inputs[0].toTensor().sum());
      break;
    case HostRead::never:
      break;
  }
  pass(op, stack);
}

// As an operation that streams see.
void CheckedReads::pass(const trace::OpInfo& op, torch::jit::Stack& stack) {
  passes_ = true;
  try {
    op.handle.callBoxed(stack);
  } catch (...) {
    passes_ = false;
    throw;
  }
  passes_ = false;
}

bool CheckedReads::knows_next() const { return !is_recording_ || values_.size() < expected_.size(); }

// A number that an operator returns.
void CheckedReads::read(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const std::size_t size = op.schema().arguments().size();
  const auto inputs = torch::jit::last(stack, size);
  std::vector<at::Tensor> tensors;
  bool is_plain = op.schema().returns().size() == 1;
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) tensors.push_back(input.toTensor());
    is_plain = is_plain && !input.isTensorList() && (!input.isTensor() || is_ours(input.toTensor()));
  }
  if (!is_plain || !knows_next()) return pass(op, stack);
  torch::jit::Stack given(inputs.begin(), inputs.end());
  c10::IValue value;
  if (is_recording_) {
    value = expected_[values_.size()];
    for (c10::IValue& input : given) {
      if (input.isTensor()) input = at::Tensor();  // memory of the graph, which is not to be kept here
    }
    const std::size_t place = note_check(tensors);
    graph::check_in_replays(
        tensors,
        [&op, given = std::move(given), value](const std::vector<at::Tensor>& now) {
          try {
            return same_constant(call_quietly(op, given, now), value);
          } catch (const c10::Error&) {
            return false;  // the call throws it eagerly
          }
        },
        fmt::format("a value that {} reads from {}", op.schema().name(), trace::describe(tensors[0])), place);
  } else {
    value = call_quietly(op, std::move(given), tensors);
    if (!is_number(value)) return pass(op, stack);
  }
  values_.push_back(value);
  torch::jit::drop(stack, size);
  stack.push_back(std::move(value));
}

std::int64_t CheckedReads::count(const at::Tensor& tensor) {
  torch::jit::Stack stack{tensor};
  read(item(), stack);
  return stack.back().toInt();
}

at::Tensor CheckedReads::places_of(const at::Tensor& mask) {
  const std::int64_t size = count(at::count_nonzero(mask));
  return at::nonzero_static(mask, size);
}

// As torch's own index() does it, which asks for the places of a mask, and goes on with a tensor for each dimension.
c10::IValue CheckedReads::without_masks(const c10::IValue& indices) {
  c10::List<std::optional<at::Tensor>> all;
  for (const c10::IValue& entry : indices.toListRef()) {
    const at::Tensor index = entry.isTensor() ? entry.toTensor() : at::Tensor();
    if (!is_mask(index) || !is_ours(index)) {
      all.push_back(entry.isTensor() ? std::optional(index) : std::nullopt);
      continue;
    }
    const at::Tensor places = places_of(index);
    for (std::int64_t i = 0; i < index.dim(); ++i) all.push_back(places.select(1, i));
  }
  return all;
}

bool CheckedReads::is_written_behind(const at::Tensor& tensor, const at::Tensor& copy) const {
  return writes_.last_write_to(tensor) > writes_.last_write_to(copy);
}

std::size_t CheckedReads::note_check(const std::vector<at::Tensor>& tensors) {
  ++checks_;
  note_parts(writes_.operations() + 1);
  std::size_t place = 1;
  for (const at::Tensor& tensor : tensors) place = std::max(place, writes_.last_write_to(tensor));
  last_place_ = std::max(last_place_, place);
  return place;
}

std::vector<CheckedReads::Bytes> CheckedReads::written() const {
  std::vector<Bytes> before;
  for (const auto& [operation, bytes] : written_) {
    if (operation <= last_place_) before.push_back(bytes);
  }
  return before;
}

void CheckedReads::on_op_begin(const trace::OpSpan& op) {
  if (!is_recording_) return;
  writes_.on_op_begin(op);
  note_parts(writes_.operations());
  if (op.info->seeded) draws_at_ = std::min(draws_at_, writes_.operations());
  if (graph::is_found_island(op.info->name, op.inputs)) {
    note_found_part();
  } else if (op.info->name != graph::kReadCheck && graph::is_island(op.info->name)) {
    note_offence("it reads behind a part that stays eager, which would run twice", writes_.operations());
  }
  if (op.info->collective) note_offence("it reads behind work with other ranks", writes_.operations());
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.info->writes[i] && !op.info->running_statistic[i]) continue;
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) {
      if (tensor.has_storage() && !op.memory->made(tensor)) note_write(tensor);
    });
  }
}

void CheckedReads::on_op_end(const trace::OpSpan& op) {
  if (is_recording_) writes_.on_op_end(op);
}

// A replay may end there as at a check; and what it draws is no operation of the step.
void CheckedReads::note_found_part() {
  ++checks_;
  last_place_ = std::max(last_place_, writes_.operations());
  draws_at_ = std::min(draws_at_, writes_.operations());
}

void CheckedReads::note_offence(const char* offence, std::size_t operation) {
  if (!offence_.empty()) return;
  offence_ = offence;
  offence_at_ = operation;
}

// A replay runs them again, and takes nothing of them back.
void CheckedReads::note_parts(std::size_t next_operation) {
  const HostParts* const parts = HostParts::current();
  if (parts == nullptr || !parts->any_active()) return;
  note_offence("it reads behind an optimizer's step, or what else counts on the host", next_operation);
}

void CheckedReads::note_write(const at::Tensor& tensor) {
  const auto offset = static_cast<std::size_t>(tensor.storage_offset());
  const std::size_t begin = offset * tensor.element_size();
  const std::size_t end =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(), offset);
  const bool is_known = std::any_of(written_.begin(), written_.end(), [&](const auto& one) {
    const Bytes& known = one.second;
    return known.of.is_alias_of(tensor.storage()) && known.begin <= begin && end <= known.end;
  });
  if (is_known || begin == end) return;
  written_.emplace_back(writes_.operations(), Bytes{.of = tensor.storage(), .begin = begin, .end = end});
}

}  // namespace pianola::callable
