#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/distributed/statement_recorder.hpp>
#include <pianola/graph/backend.hpp>
#include <pianola/graph/foreign_draws.hpp>
#include <pianola/graph/moved_asleep.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/outside_guard.hpp>
#include <pianola/graph/path_check.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/recording.hpp>
#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/graph/run_islands.hpp>
#include <pianola/graph/state_before.hpp>
#include <pianola/trace/block_log.hpp>
#include <pianola/trace/op_stream.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::graph {

/// What a successful session leaves behind, besides what the backend holds.
struct CaptureResult {
  std::shared_ptr<const OpTrace> trace;  ///< nullptr without one.
  std::vector<trace::StepBlock> blocks;  ///< That the recording was handed out; none without the trace.
  std::size_t input_bytes = 0;           ///< Of CaptureOptions::inputs.
  std::vector<ByteSpan> inputs;          ///< Where they lie; merged().
  std::chrono::microseconds warmup_time{};
  std::chrono::microseconds capture_time{};
  std::chrono::microseconds agreement_time{};
  std::chrono::microseconds end_time{};
  std::vector<std::string> warnings;
  std::optional<OutsideGuard> outside;  ///< Of CheckMode::strict.
  std::unique_ptr<MovedAsleep>
      asleep;  ///< Of a pool that can sleep, where `outside` sees it not; nullptr: none is watched.
  RecurrentDropout dropout;
  std::vector<std::string> groups;  ///< Of processes, that it communicates by.
  distributed::RunByReplays collectives;
  bool wanted_branches = false;
  bool under_function_mode = false;  ///< A TorchFunctionMode of the user's was active.
  std::uint64_t region = 0;          ///< Of other numbers, in which modules ran that was open before; 0: none.
  std::vector<std::shared_ptr<const void>> region_uses;  ///< What replays tell such a region.
};

/// The capture that an update takes the place of.
struct EarlierCapture {
  Backend* backend;
  const OpTrace* trace;
};

/// One capture, from the first eager run to the executable. Destroyed before commit() returned, it puts everything back:
/// stream, memory, tensors, gradients, generators. Stays on the thread that made it.
class CaptureSession {
 public:
  /// @param earlier  Of an update: commit() lets its executable take the recording over. With the trace.
  /// @throws UsageError  The options are out of range, or a capture is open on this thread.
  CaptureSession(Backend& backend, const CaptureOptions& options, std::optional<EarlierCapture> earlier = {});
  CaptureSession(const CaptureSession&) = delete;
  CaptureSession& operator=(const CaptureSession&) = delete;
  ~CaptureSession();

  void warm_up(const std::function<void()>& step);
  /// Where memory is planned, and lanes are wanted or the recording may take a path of its own: runs the step once more, in a recording
  /// that is dropped. See Note [Recorded ahead]. @throws  As step() between begin() and commit(); fail() follows.
  void record_ahead(const std::function<void()>& step);
  /// From here on the operations of this thread are recorded.
  void begin();
  /// Ends the recording. @throws CaptureError  Something in it cannot be captured, or it is empty.
  [[nodiscard]] CaptureResult commit();
  /// The step threw while it was recorded: puts everything back, and turns the error of a forbidden operation into a
  /// CaptureError that names it; an error of the user's own is rethrown unchanged.
  [[noreturn]] void fail(std::exception_ptr error);
  /// In place of an end, on another thread: drops the recording and puts tensors and generators back. What belongs to the
  /// session's own thread stays as it is, so that the session must not be destroyed.
  void leave_behind() noexcept;

 private:
  void run_eagerly(const std::function<void()>& step, int run);
  void use_memory_of(const trace::BlockLog& run);
  [[nodiscard]] bool has_to_record_ahead() const;
  void start_recording(const std::vector<trace::OpObserver*>& others);
  [[nodiscard]] std::vector<trace::OpObserver*> observers();
  void check_dropout() const;
  [[nodiscard]] CaptureResult describe(Recorded recorded) const;
  void end_in_backend(CaptureResult& result);
  void take_over_from_earlier(const OpTrace& trace);
  void put_back(std::vector<std::string>& warnings);
  void hand_over_watches(CaptureResult& result, const std::vector<at::Tensor>& new_gradients);
  void abandon() noexcept;

  CaptureThreads threads_;  // around all that follows
  Backend& backend_;
  CaptureOptions options_;
  std::optional<EarlierCapture> earlier_;
  StateBefore before_;
  std::optional<OneCall::Scope> in_pool_;  // that others may capture into
  std::unique_ptr<StreamScope> stream_;
  std::optional<PathCheck> path_;  // where something can be told
  RunIslands islands_;
  std::optional<OutsideTensors> outside_;  // of CheckMode::strict
  std::optional<OutsideTensors> asleep_;   // of a pool that can sleep, without that
  RecurrentDropout dropout_;
  std::optional<distributed::StatementRecorder> communication_;
  std::optional<Recording> recording_;             // the one at hand
  std::optional<memory::StepRun> run_to_plan_by_;  // of plan_memory
  bool communicates_ = false;                      // as warm-up has seen
  std::chrono::microseconds warmup_time_{};
  bool finished_ = false;
};

/// A whole session: warms up and records `step`. What it throws comes out, explained where the capture caused it.
[[nodiscard]] CaptureResult record_step(Backend& backend, const std::function<void()>& step,
                                        const CaptureOptions& options, std::optional<EarlierCapture> earlier = {});

/// Runs `step` as a capture would warm it up, `options.warmup` times, and puts everything back: on the capture stream,
/// with the pool's workspaces. For a step that is captured in several graphs.
void warm_up(c10::Device device, const std::function<void()>& step, const CaptureOptions& options);

}  // namespace pianola::graph
