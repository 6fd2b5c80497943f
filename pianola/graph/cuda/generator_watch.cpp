#include <pianola/graph/cuda/generator_watch.hpp>

#include <pianola/trace/op_info.hpp>

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace pianola::graph {
namespace {

// Beyond what one recording draws; a multiple of 4, as offsets have to be.
constexpr std::uint64_t kApart = std::uint64_t{1} << 40;

std::uint64_t next_start() {
  static std::atomic<std::uint64_t> recordings = 0;
  return ++recordings * kApart;
}

}  // namespace

GeneratorWatch::GeneratorWatch(std::vector<GeneratorClock::State> states)
    : states_(std::move(states)), start_(next_start()) {
  mark();
}

std::uint64_t GeneratorWatch::mark_of(const GeneratorClock::State& state) const {
  return start_ + state->offset_intragraph_;
}

bool GeneratorWatch::is_marked() const {
  return std::all_of(states_.begin(), states_.end(),
                     [&](const auto& state) { return state->philox_offset_per_thread_ == mark_of(state); });
}

void GeneratorWatch::mark() const {
  for (const auto& state : states_) state->philox_offset_per_thread_ = mark_of(state);
}

void GeneratorWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  if (op.info->seeded && !offender_ && !is_marked()) offender_ = OffendingOp::note(op, operations_);
}

void GeneratorWatch::on_op_end(const trace::OpSpan& op) {
  if (op.info->seeded && !offender_) mark();
}

std::optional<Diagnosis> GeneratorWatch::offence(const OpTrace* trace) const {
  if (!offender_ && is_marked()) return std::nullopt;
  return explain_moved_generator(offender_, trace);
}

}  // namespace pianola::graph
