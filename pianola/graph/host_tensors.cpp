#include <pianola/graph/host_tensors.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/step_memory.hpp>

#include <fmt/format.h>

namespace pianola::graph {
namespace {

bool copies_between_devices(const trace::OpSpan& op) {
  const std::string& name = op.info->schema().name();
  return (name == "aten::copy_" || name == "aten::_to_copy") && DeviceKinds::of(op.inputs).other;
}

}  // namespace

DeviceKinds DeviceKinds::of(c10::ArrayRef<c10::IValue> values) {
  DeviceKinds kinds;
  const auto note = [&](c10::Device device) { (device.is_cpu() ? kinds.cpu : kinds.other) = true; };
  for (const c10::IValue& value : values) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { note(tensor.device()); });
    if (value.isDevice()) note(value.toDevice());
  }
  return kinds;
}

void HostTensors::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (op.info->is_view || op.info->is_empty) return;
  if (const at::Tensor* const source = trace::copied_from_host(*op.info, op.inputs)) {
    if (!op.memory->is_of_step(*source) && !op.memory->is_host_number(*source)) note(op, *source, /*written=*/false);
    return;
  }
  if (copies_between_devices(op)) return;
  trace::for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
    if (!tensor.is_cpu() || !tensor.has_storage() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
    const bool is_of_step = op.memory->made(tensor) || op.memory->is_host_number(tensor) ||
                            (trace::takes_from_host(*op.info, op.inputs, tensor) && op.memory->is_of_step(tensor));
    if (!is_of_step) note(op, tensor, written);
  });
}

void HostTensors::note(const trace::OpSpan& op, const at::Tensor& tensor, bool written) {
  if (written && !write_) write_ = OffendingOp::note(op, operations_);
  if (!read_.insert(tensor.unsafeGetTensorImpl()).second) return;
  bytes_ += trace::span_bytes_of(tensor);
  if (!first_read_) first_read_ = OffendingOp::note(op, operations_);
}

std::optional<Diagnosis> HostTensors::obstacle() const {
  constexpr const char* kFix = "keep it on the device; of an optimizer's state, capturable=True does that";
  if (write_) {
    return Diagnosis{.what = fmt::format("{} writes a tensor of the CPU, which a replay would not do", write_->name),
                     .where = write_->where(nullptr),
                     .fix = kFix,
                     .rule = "PG201"};
  }
  if (bytes_ <= kMostBytes) return std::nullopt;
  return Diagnosis{
      .what = fmt::format("the step computes with {} bytes of tensors of the CPU, too many to compare before "
                          "each replay (at most {}); {} does so first",
                          bytes_, kMostBytes, first_read_->name),
      .where = first_read_->where(nullptr),
      .fix = "move them to the device",
      .rule = "PG201"};
}

}  // namespace pianola::graph
