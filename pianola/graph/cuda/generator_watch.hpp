#pragma once
#include <pianola/graph/offence.hpp>
#include <pianola/torch_abi/cuda/draw_words.hpp>
#include <pianola/trace/op_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

namespace pianola::graph {

// Note [Generators set while recording]
// While a graph is recorded, torch counts what it draws from the recording's start, and a generator's state is that count. A
// step that saves the state and sets it again later (torch.utils.checkpoint does, for recomputed dropout) moves the count
// back, and the recomputed kernels draw the same numbers. A state from elsewhere names another place than a replay is at,
// and goes unnoticed by torch: it is known here by a count that this recording never had for that generator (each may be
// put back alone). Where the state may have been saved in the recording of another graph, none may be set at all
// (CaptureOptions::set_generators).

// Note [Generators that the graph does not know]
// Up to torch 2.11 a draw from one throws while a capture is open. Since 2.12 it registers the generator with the capture, by words
// of its own, which no replay moves on: all replays would draw the same numbers.

/// Sees whether the step sets a generator to a place that a replay cannot come to, or draws from one that the graph does not know.
class GeneratorWatch final : public trace::OpObserver {
 public:
  /// @param drawn       Of the capture, which has begun, for each state that takes part.
  /// @param registered  How many take part now; 0 where the capture is over.
  GeneratorWatch(std::vector<torch_abi::DrawCount> drawn, std::function<std::size_t()> registered, bool may_be_set);

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  [[nodiscard]] std::optional<Diagnosis> offence(const OpTrace* trace) const;
  /// Whether an operation drew, be it that the generators were put back afterwards.
  [[nodiscard]] bool drew() const noexcept;

 private:
  using Place = std::vector<std::uint64_t>;  // the count of each state
  [[nodiscard]] Place place() const;
  void note_place();
  [[nodiscard]] bool was_set_wrongly() const;

  std::vector<torch_abi::DrawCount> drawn_;
  std::function<std::size_t()> registered_;
  bool may_be_set_;
  std::vector<std::set<std::uint64_t>> counts_;  // that the step has had, of each state
  Place last_;
  std::size_t operations_ = 0;
  std::optional<OffendingOp> offender_, draws_from_stranger_;
};

}  // namespace pianola::graph
