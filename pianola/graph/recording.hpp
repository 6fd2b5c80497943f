#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/run_islands.hpp>
#include <pianola/graph/state_before.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/numeric_region.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace pianola::graph {

/// What a recording came to.
struct Recorded {
  std::shared_ptr<const OpTrace> trace;  ///< nullptr without one.
  std::vector<trace::StepBlock> blocks;  ///< Of its device, that it was handed out; none without the trace.
  std::vector<const void*> operations;   ///< BlockLog::operations(), likewise.
  std::uint64_t region = 0;              ///< CaptureResult::region.
  std::vector<std::shared_ptr<const void>> region_uses;  ///< CaptureResult::region_uses.
  std::chrono::microseconds time{};                      ///< From its begin to its end.
};

/// What one had seen when its step threw.
struct BrokenOff {
  std::optional<trace::OddWork> odd_work;  ///< The first that the graph cannot hold.
  std::optional<trace::OddWork> communication;
  std::optional<OpTrace> trace;  ///< Empty after end().
};

/// One run of a step that the backend records, with all who watch it. A capture makes one that counts, and may make one before it
/// (Note [Recorded ahead]): they differ in who watches besides, and in what the backend makes of them.
///
/// Stays on the thread that began it. What the backend has recorded is dropped, or ended, there.
class Recording {
 public:
  /// All live longer.
  Recording(Backend& backend, const CaptureOptions& options, StateBefore& before, RunIslands& islands)
      : backend_(backend), options_(options), before_(before), islands_(islands) {}
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { undo(); }

  /// From here on the operations of this thread are recorded. Where it throws, undo() follows.
  /// @param others  Who is shown them, besides those that each recording is.
  void begin(const std::vector<trace::OpObserver*>& others, trace::ForRanks patience);
  /// The step has come to its end: nobody watches any more. The backend has it still, to be ended there.
  /// @throws CaptureError  Something in it cannot be captured.
  /// @throws OutOfMemoryError  There was none to watch it.
  [[nodiscard]] Recorded end();

  /// In place of end(): the step threw, and nobody watches any more. undo() follows.
  [[nodiscard]] BrokenOff break_off();
  /// Nobody watches any more, and parts that stay eager are of no recording. Also where it never began, or is undone.
  void undo() noexcept;
  /// In place of undo(), on another thread: what belongs to its own stays as it is, so that it must not be destroyed.
  void leave_behind() noexcept;

 private:
  [[nodiscard]] TraceRecorderOptions recorder_options();

  Backend& backend_;
  const CaptureOptions& options_;
  StateBefore& before_;
  RunIslands& islands_;
  std::chrono::steady_clock::time_point began_;
  std::optional<TraceRecorder> recorder_;
  std::optional<trace::BlockLog> blocks_;  // beside the trace
  std::optional<trace::RegionUses> region_uses_;
  std::optional<trace::OpStream> watching_;  // shows them the operations
};

}  // namespace pianola::graph
