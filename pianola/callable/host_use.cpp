#include <pianola/callable/host_use.hpp>

#include <pianola/core/hazard_rule.hpp>
#include <pianola/graph/host_tensors.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/late_read.hpp>
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

// As torch.tensor([], device=device) does.
bool copies_nothing(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  return op.name == "aten::_to_copy" && inputs[0].isTensor() && inputs[0].toTensor().defined() &&
         inputs[0].toTensor().numel() == 0;
}

using Offence = std::optional<graph::OffendingOp>;

Offence first_of(const Offence& one, const Offence& other) {
  if (!one || !other) return one ? one : other;
  return one->number < other->number ? one : other;
}

std::optional<Diagnosis> explain(const Offence& read, const Offence& copy) {
  if (read && (!copy || read->number <= copy->number)) return explain_host_read(*read, nullptr);
  return copy ? std::optional(explain_host_copy(*copy, nullptr)) : std::nullopt;
}

}  // namespace

void HostUse::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  const auto devices = graph::DeviceKinds::of(op.inputs);
  if (trace::reads_on_host(*op.info, op.inputs)) {
    Reads& reads = trace::LateRead::is_open() ? late_reads_ : reads_;
    std::optional<graph::OffendingOp>& read = devices.other ? reads.of_others : reads.of_cpu;
    if (!read) read = graph::OffendingOp::note(op, operations_);
  }
  const at::Tensor* const copied = trace::copied_from_host(*op.info, op.inputs);
  const trace::HostCalls* const host = trace::HostCalls::current();
  // A part of the host may copy other values in each call: of a number the graph is told.
  const bool is_number = copied != nullptr && host != nullptr && host->gives(*copied);
  const bool is_kept = copies_nothing(*op.info, op.inputs) || (copied != nullptr && (host == nullptr || is_number));
  const bool indexes = host == nullptr && !trace::indices_of_host(*op.info, op.inputs).empty();
  copies_from_host_ = copies_from_host_ || (is_kept && !is_number) || indexes;
  if (!copy_ && !is_kept && waits_for_copy(*op.info, op.inputs, devices))
    copy_ = graph::OffendingOp::note(op, operations_);
}

void HostUse::on_op_end(const trace::OpSpan& op) {
  if (draw_ || !op.info->seeded) return;
  const auto devices = graph::DeviceKinds::of(op.outputs);
  if (devices.cpu && !devices.other) draw_ = graph::OffendingOp::note(op, operations_);
}

std::optional<Diagnosis> HostUse::reads(c10::Device device, bool late_ones_count) const {
  const Reads& late = late_ones_count ? late_reads_ : Reads();
  if (device.is_cpu()) return explain(first_of(reads_.of_cpu, late.of_cpu), std::nullopt);
  // A late read of the CPU would be made again of a copy that the graph does not write.
  return explain(first_of(first_of(reads_.of_others, late.of_others), late_reads_.of_cpu), copy_);
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
