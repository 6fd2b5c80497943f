#pragma once
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/trace/op_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pianola::graph {

// Note [Marked generators]
// While a graph is recorded, torch counts what it draws from the recording's start, and leaves the generator's offset
// alone: saving and setting the state (torch.utils.checkpoint) goes through, does nothing, and recomputed dropout draws
// another mask than the forward pass did. So the offset, which nobody reads meanwhile, is made to move with each draw,
// from a start that no other recording has: a state that was set is then another one than was left. The session puts the
// generators back.

/// Sees whether the step sets a generator while it is recorded.
class GeneratorWatch final : public trace::OpObserver {
 public:
  explicit GeneratorWatch(std::vector<GeneratorClock::State> states);

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  [[nodiscard]] std::optional<Diagnosis> offence(const OpTrace* trace) const;

 private:
  [[nodiscard]] std::uint64_t mark_of(const GeneratorClock::State& state) const;
  [[nodiscard]] bool is_marked() const;
  void mark() const;

  std::vector<GeneratorClock::State> states_;
  std::uint64_t start_;
  std::size_t operations_ = 0;
  std::optional<OffendingOp> offender_;
};

}  // namespace pianola::graph
