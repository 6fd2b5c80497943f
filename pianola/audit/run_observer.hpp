#pragma once
#include <pianola/audit/leaf_watch.hpp>
#include <pianola/audit/observed_run.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/trace_recorder.hpp>
#include <pianola/trace/write_set.hpp>

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::auditing {

/// Notes of one run what the trace does not hold. Stands behind the trace's recorder among a stream's observers.
class RunObserver final : public trace::OpObserver {
 public:
  /// @param known       Generators that a capture will know of: the default ones, and those of the options.
  /// @param written     Keeps what the run writes outside its own memory; nullptr: nothing is put back.
  /// @param like        The run before, which spares asking again what is known; may be nullptr. Must outlive this.
  RunObserver(const TraceRecorder& recorder, LeafWatch& leaves, std::span<const at::Generator> known,
              trace::WriteSet* written, const ObservedRun* like);

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  void enter_module(const std::string& path);
  void leave_module();
  [[nodiscard]] std::size_t operations() const noexcept { return run_.notes.size(); }

  /// What was noted; the trace is the caller's to add. Call it when the stream is closed.
  [[nodiscard]] ObservedRun take();

 private:
  struct Made {
    Memory memory;
    std::uint32_t op;
  };
  struct WatchedGenerator {
    at::Generator generator;
    std::uint64_t position;
  };

  void save_writes(const trace::OpSpan& op, const OpRecord& record);
  void visit_inputs(const trace::OpSpan& op, std::uint32_t index, const OpRecord& record);
  void visit_outside(const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal, bool written, bool assigns);
  [[nodiscard]] bool was_allocated(const c10::Storage& storage);
  void visit_blank(const trace::OpSpan& op, const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal,
                   bool written);
  void note_values(const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal, bool number);
  void note_copy(const trace::OpSpan& op, const at::Tensor& source, OpNote& note) const;
  void note_generators(const trace::OpSpan& op, std::uint32_t index);
  void check_positions(std::optional<std::uint32_t> before_op);
  void take_positions();

  ObservedRun run_;
  const TraceRecorder& recorder_;
  LeafWatch& leaves_;
  trace::WriteSet* written_;
  const ObservedRun* like_;
  std::vector<WatchedGenerator> generators_;
  trace::AllocationLog allocations_;
  std::vector<Made> made_;
  std::vector<const void*> blank_;  // small memory of the CPU that an `empty` made and nothing has written yet
  std::vector<std::pair<std::uint64_t, std::uint32_t>> running_;  // operation number, index
  std::vector<std::uint32_t> open_modules_ = {0};
  bool cuda_in_use_;
};

}  // namespace pianola::auditing
