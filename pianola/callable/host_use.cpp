#include <pianola/callable/host_use.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace pianola::callable {
namespace {

// Torch's copies between devices wait for the device, unless they are told not to.
bool waits_for_copy(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs, const graph::DeviceKinds& devices) {
  if (!devices.cpu || !devices.other) return false;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && i < inputs.size(); ++i) {
    if (arguments[i].name() == "non_blocking") return inputs[i].isBool() && !inputs[i].toBool();
  }
  return false;
}

}  // namespace

void HostUse::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  const auto devices = graph::DeviceKinds::of(op.inputs);
  if (trace::reads_on_host(*op.info, op.inputs)) {
    std::optional<graph::OffendingOp>& read = devices.other ? read_ : read_on_cpu_;
    if (!read) read = graph::OffendingOp::note(op, operations_);
  }
  if (!copy_ && waits_for_copy(*op.info, op.inputs, devices)) copy_ = graph::OffendingOp::note(op, operations_);
}

void HostUse::on_op_end(const trace::OpSpan& op) {
  if (draw_ || !op.info->seeded) return;
  const auto devices = graph::DeviceKinds::of(op.outputs);
  if (devices.cpu && !devices.other) draw_ = graph::OffendingOp::note(op, operations_);
}

std::optional<Diagnosis> HostUse::reads(c10::Device device) const {
  if (device.is_cpu()) return read_on_cpu_ ? std::optional(explain_host_read(*read_on_cpu_, nullptr)) : std::nullopt;
  if (read_ && (!copy_ || read_->number <= copy_->number)) return explain_host_read(*read_, nullptr);
  return copy_ ? std::optional(explain_host_copy(*copy_, nullptr)) : std::nullopt;
}

std::optional<Diagnosis> HostUse::draws(c10::Device device) const {
  if (device.is_cpu() || !draw_) return std::nullopt;
  const std::string rule = "PG606";
  return Diagnosis{.what = fmt::format("{} draws random numbers of the CPU, which a graph on {} would repeat for ever",
                                       draw_->name, device.str()),
                   .where = draw_->where(nullptr),
                   .fix = std::string(hazard_rule(rule).fix),
                   .rule = rule};
}

}  // namespace pianola::callable
