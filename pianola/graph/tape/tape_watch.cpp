#include <pianola/graph/tape/tape_watch.hpp>

#include <pianola/trace/host_read.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace pianola::graph {

TapeWatch::TapeWatch(std::vector<at::Generator> generators) : generators_(std::move(generators)) {}

void TapeWatch::on_op_begin(const trace::OpSpan& op) {
  ++ops_;
  if (op.info->seeded) stamp_ = generator_stamp();
  if (kind_) return;
  if (trace::reads_on_host(*op.info, op.inputs)) return note(Kind::host_read, op);
  for (const c10::IValue& value : op.inputs) {
    if (value.isGenerator() && value.toGenerator().defined() &&
        std::find(generators_.begin(), generators_.end(), value.toGenerator()) == generators_.end()) {
      return note(Kind::generator, op);
    }
    bool foreign = false;
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { foreign = foreign || !tensor.device().is_cpu(); });
    if (foreign) return note(Kind::other_device, op);
  }
}

void TapeWatch::on_op_end(const trace::OpSpan& op) {
  if (op.info->seeded && generator_stamp() != stamp_) ++draws_;
  if (kind_) return;
  for (const c10::IValue& value : op.outputs) {
    bool opaque = false;
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { opaque = opaque || !tensor.has_storage(); });
    if (opaque) return note(Kind::no_storage, op);
  }
}

void TapeWatch::note(Kind kind, const trace::OpSpan& op) {
  kind_ = kind;
  offender_ = OffendingOp::note(op, ops_);
}

// A CPU generator tells its state only as a tensor of 5 KB: a hash of it says whether it moved.
std::uint64_t TapeWatch::generator_stamp() const {
  const trace::QuietScope quiet;
  std::uint64_t stamp = 0;
  for (const at::Generator& generator : generators_) {
    const at::Tensor state = generator.get_state();
    const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
    stamp = stamp * 31 + std::hash<std::string_view>()(bytes);
  }
  return stamp;
}

std::optional<Diagnosis> TapeWatch::offence(const OpTrace* trace) const {
  if (!kind_) return std::nullopt;
  const std::string where = offender_->where(trace);
  switch (*kind_) {
    case Kind::host_read:
      return Diagnosis{
          .what = fmt::format("{} {}, which a graph cannot do", offender_->name,
                              trace::why_host(offender_->info->host_read)),
          .where = where,
          .fix =
              "keep the value on the device (torch::where, masked arithmetic, fixed shapes), or leave this "
              "part out of the capture"};
    case Kind::other_device:
      return Diagnosis{.what = fmt::format("{} uses a tensor of another device than cpu, the graph's", offender_->name),
                       .where = where,
                       .fix = "move the tensor before the capture, or make the graph on its device"};
    case Kind::generator:
      return Diagnosis{.what = fmt::format("{} draws from a generator that the graph does not know", offender_->name),
                       .where = where,
                       .fix = "name it in CaptureOptions::generators"};
    case Kind::no_storage:
      return Diagnosis{.what = fmt::format("{} makes a sparse or opaque tensor, which the tape cannot keep in place",
                                           offender_->name),
                       .where = where,
                       .fix = "use dense tensors in the captured part"};
  }
  return std::nullopt;
}

}  // namespace pianola::graph
