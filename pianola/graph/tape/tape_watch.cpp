#include <pianola/graph/tape/tape_watch.hpp>

#include <pianola/graph/offence.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/SavedTensorHooks.h>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::graph {

namespace {

// Only they can throw after an operation has computed its result, and keep that.
bool has_saved_tensor_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

}  // namespace

TapeWatch::TapeWatch(std::vector<at::Generator> generators)
    : generators_(std::move(generators)), others_(std::make_unique<ForeignDraws>()) {
  marks_.emplace(generators_);
  for (const at::Generator& generator : generators_) uses_.emplace_back(generator, *others_);
}

void TapeWatch::on_op_begin(const trace::OpSpan& op) {
  ++ops_;
  if (op.info->seeded) check_generators(op);
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
  check_lost(op);
}

// What a call hidden in an operation made, a replay makes elsewhere.
void TapeWatch::check_lost(const trace::OpSpan& op) {
  const trace::OpInfo* maker = nullptr;
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (maker == nullptr) maker = op.memory->maker_of_lost(tensor);
    });
  }
  if (maker != nullptr) note(Kind::lost_result, op, maker->schema().name());
}

void TapeWatch::on_op_end(const trace::OpSpan& op) {
  if (op.info->seeded) note_draws();
  if (kind_) return;
  if (has_saved_tensor_hooks() && op.outputs.empty() && !op.info->schema().returns().empty()) {
    return note(Kind::left_by_exception, op);
  }
  for (const c10::IValue& value : op.outputs) {
    bool opaque = false;
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { opaque = opaque || !tensor.has_storage(); });
    if (opaque) return note(Kind::no_storage, op);
  }
}

// Between two draws of the step nobody may set the generators, and nothing of the step move them unseen: a replay would not
// do so. Draws of other threads are theirs.
void TapeWatch::check_generators(const trace::OpSpan& op) {
  if (!kind_ && generators_are_set()) note(Kind::moved_generator, op);
  for (GeneratorUse& use : uses_) use.begin();
}

// An operation may set a generator as well, which the tape then replays.
void TapeWatch::note_draws() {
  bool drew = false;
  for (GeneratorUse& use : uses_) {
    use.end();
    drew = drew || use.moved_by_last();
  }
  if (drew) ++draws_;
  if (marks_) marks_->renew();
}

std::vector<at::Generator> TapeWatch::drawn_from() const {
  std::vector<at::Generator> drawn;
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i].moved_by_own()) drawn.push_back(generators_[i]);
  }
  return drawn;
}

bool TapeWatch::generators_are_set() const {
  return (marks_ && !marks_->intact()) ||
         std::any_of(uses_.begin(), uses_.end(), [](const GeneratorUse& use) { return use.is_moved_between(); });
}

// An exception that the step did not catch speaks for itself.
void TapeWatch::stop() noexcept {
  stopped_ = true;
  marks_.reset();
  uses_.clear();
  others_.reset();
  if (kind_ == Kind::left_by_exception) kind_.reset();
}

void TapeWatch::note(Kind kind, const trace::OpSpan& op, const std::string& maker) {
  kind_ = kind;
  offender_ = OffendingOp::note(op, ops_);
  maker_ = maker;
}

std::optional<Diagnosis> TapeWatch::offence(const OpTrace* trace) const {
  if (!kind_ && !stopped_ && generators_are_set()) return explain_moved_generator(std::nullopt, trace);
  if (!kind_) return std::nullopt;
  const std::string where = offender_->where(trace);
  switch (*kind_) {
    case Kind::host_read:
      return explain_host_read(*offender_, trace);
    case Kind::other_device:
      return Diagnosis{.what = fmt::format("{} uses a tensor of another device than cpu, the graph's", offender_->name),
                       .where = where,
                       .fix = "move the tensor before the capture, or make the graph on its device",
                       .rule = "PG204"};
    case Kind::generator:
      return explain_unknown_generator(offender_->name, where);
    case Kind::moved_generator:
      return explain_moved_generator(offender_, trace);
    case Kind::left_by_exception:
      return Diagnosis{
          .what = fmt::format("a saved-tensor hook threw inside {}, so the tape does not know what it computed",
                              offender_->name),
          .where = where,
          .fix = "do not throw in the hook; for torch.utils.checkpoint, set_checkpoint_early_stop(False)",
          .rule = "PG1203"};
    case Kind::lost_result:
      return Diagnosis{
          .what = fmt::format("{} reads a tensor that {} made and did not return, so a replay would not make it again",
                              offender_->name, maker_),
          .where = where,
          .fix = fmt::format("let {} return the tensor, or leave this part out of the capture", maker_),
          .rule = "PG1203"};
    case Kind::no_storage:
      return Diagnosis{.what = fmt::format("{} makes a sparse or opaque tensor, which the tape cannot keep in place",
                                           offender_->name),
                       .where = where,
                       .fix = "use dense tensors in the captured part",
                       .rule = "PG1203"};
  }
  return std::nullopt;
}

}  // namespace pianola::graph
