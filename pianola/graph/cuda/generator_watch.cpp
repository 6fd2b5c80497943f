#include <pianola/graph/cuda/generator_watch.hpp>

#include <pianola/trace/op_info.hpp>

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <utility>

namespace pianola::graph {

GeneratorWatch::GeneratorWatch(std::vector<GeneratorClock::State> states, bool may_be_set)
    : states_(std::move(states)), may_be_set_(may_be_set), places_({place()}), last_(place()) {}

GeneratorWatch::Place GeneratorWatch::place() const {
  Place place;
  for (const auto& state : states_) place.push_back(state->offset_intragraph_);
  return place;
}

bool GeneratorWatch::was_set_wrongly() const {
  const Place now = place();
  return now != last_ && (!may_be_set_ || places_.count(now) == 0);
}

void GeneratorWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (op.info->seeded && !offender_ && was_set_wrongly()) offender_ = OffendingOp::note(op, operations_);
}

void GeneratorWatch::on_op_end(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  last_ = place();
  places_.insert(last_);
}

std::optional<Diagnosis> GeneratorWatch::offence(const OpTrace* trace) const {
  if (!offender_ && !was_set_wrongly()) return std::nullopt;
  return explain_moved_generator(offender_, trace);
}

}  // namespace pianola::graph
