#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/graph/generator_states.hpp>
#include <pianola/graph/offence.hpp>
#include <pianola/graph/seed_marks.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::graph {

/// Refuses on the tape what CUDA refuses: host reads, tensors of another device, generators that were not named. Notes
/// the first offender; a throw from a callback would be lost.
class TapeWatch final : public trace::OpObserver {
 public:
  explicit TapeWatch(std::vector<at::Generator> generators);

  [[nodiscard]] trace::OpInterest interest() const override { return {.inner = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  [[nodiscard]] std::optional<Diagnosis> offence(const OpTrace* trace) const;
  /// The recording is over, and the generators are no longer its own.
  void stop() noexcept;
  /// Operations so far that have moved a generator.
  [[nodiscard]] std::uint64_t draws() const noexcept { return draws_; }
  /// Those that they have moved.
  [[nodiscard]] std::vector<at::Generator> drawn_from() const;

 private:
  enum class Kind { host_read, other_device, generator, moved_generator, no_storage, left_by_exception, lost_result };
  void note(Kind kind, const trace::OpSpan& op, const std::string& maker = "");
  void check_lost(const trace::OpSpan& op);
  void check_generators(const trace::OpSpan& op);
  void note_draws();
  [[nodiscard]] bool generators_are_set() const;

  std::vector<at::Generator> generators_;
  std::optional<SeedMarks> marks_;  // while recording
  std::unique_ptr<ForeignDraws> others_;
  std::vector<GeneratorUse> uses_;  // of each generator
  std::size_t ops_ = 0;
  std::uint64_t draws_ = 0;
  bool stopped_ = false;
  std::optional<Kind> kind_;
  std::optional<OffendingOp> offender_;
  std::string maker_;  // of what the offender reads; of Kind::lost_result
};

}  // namespace pianola::graph
