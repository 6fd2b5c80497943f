#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/cuda/branches.hpp>
#include <pianola/graph/cuda/planned_memory.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/trace/op_trace.hpp>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pianola::graph {

/// A recording that is dropped, before the one that counts: where its blocks lay, and which of them its lanes keep apart. See Note [Recorded
/// ahead] in lane_memory.hpp.
class RecordedAhead {
 public:
  /// The next recording is one. @param run  Before: its blocks take about as many bytes.
  void ask_for(memory::StepRun run) { run_ = std::move(run); }
  [[nodiscard]] bool is_asked_for() const noexcept { return run_.has_value(); }
  /// The recording begins. @return  nullptr: the driver has no such addresses.
  std::shared_ptr<PlannedMemory> begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool);
  /// Where its blocks lay; empty: there was none.
  [[nodiscard]] ByteSpan bytes() const noexcept { return bytes_; }

  /// It has ended. @param captured  What it came to. @param run, places  What it was handed out, and where that lay.
  /// @return  The blocks of its stream, with what its lanes keep apart; nullopt: it has none.
  [[nodiscard]] std::optional<memory::StepRun> keep_lanes_apart(Branches& branches, Branches::Captured captured,
                                                                c10::cuda::CUDAStream stream,
                                                                const memory::StepRun& run,
                                                                std::span<const ByteSpan> places) const;
  /// The recording that counts has ended, and was handed out this. @throws CaptureError  It used what the first one had made.
  void check_nothing_carried(const OpTrace& trace, const std::vector<ByteSpan>& allocated);
  void forget() { *this = {}; }

 private:
  std::optional<memory::StepRun> run_;
  ByteSpan bytes_ = {};
};

}  // namespace pianola::graph
