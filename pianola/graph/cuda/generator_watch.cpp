#include <pianola/graph/cuda/generator_watch.hpp>

#include <pianola/trace/op_info.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {

GeneratorWatch::GeneratorWatch(std::vector<torch_abi::DrawCount> drawn, std::function<std::size_t()> registered,
                               bool may_be_set)
    : drawn_(std::move(drawn)), registered_(std::move(registered)), may_be_set_(may_be_set), counts_(drawn_.size()) {
  note_place();
}

GeneratorWatch::Place GeneratorWatch::place() const {
  Place place;
  for (const torch_abi::DrawCount& one : drawn_) place.push_back(one.value());
  return place;
}

void GeneratorWatch::note_place() {
  last_ = place();
  for (std::size_t i = 0; i < last_.size(); ++i) counts_[i].insert(last_[i]);
}

bool GeneratorWatch::was_set_wrongly() const {
  const Place now = place();
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != last_[i] && (!may_be_set_ || !counts_[i].contains(now[i]))) return true;
  }
  return false;
}

bool GeneratorWatch::drew() const noexcept {
  return std::any_of(counts_.begin(), counts_.end(), [](const auto& counts) { return counts.size() > 1; });
}

void GeneratorWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (op.info->seeded && !offender_ && was_set_wrongly()) offender_ = OffendingOp::note(op, operations_);
}

void GeneratorWatch::on_op_end(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  if (!draws_from_stranger_ && registered_() > drawn_.size()) draws_from_stranger_ = OffendingOp::note(op, operations_);
  note_place();
}

std::optional<Diagnosis> GeneratorWatch::offence(const OpTrace* trace) const {
  if (draws_from_stranger_)
    return explain_unknown_generator(draws_from_stranger_->name, draws_from_stranger_->where(trace));
  // Kernels that are no operations draw, too.
  if (registered_() > drawn_.size()) return explain_unknown_generator("a call that is no operation of torch's", "");
  if (!offender_ && !was_set_wrongly()) return std::nullopt;
  return explain_moved_generator(offender_, trace);
}

}  // namespace pianola::graph
