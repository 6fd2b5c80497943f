#pragma once
#include <pianola/audit/cuda/caller.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/cuda/api_call.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace pianola {
class OpTrace;
struct Cupti;
}  // namespace pianola

namespace pianola::auditing {

/// One call of CUDA during a run.
struct CudaCall {
  ApiCall api;
  std::thread::id thread;
  bool of_step = false;       ///< On the step's thread, or on one of autograd's while it runs a node of the step's.
  std::size_t operation = 0;  ///< How many operations of the run had begun; the last of them is inside() or before it.
  bool inside = false;        ///< An operation runs on this thread: that one.
  bool aten = false;          ///< That operation is one of ATen's, so that what it does is ATen's doing.
  bool explained = false;   ///< That operation is known to read values on the host, or to copy between it and a device.
  bool after_copy = false;  ///< Of waits: that operation has copied to the host before.
  bool pageable = false;    ///< Of copies: one side is memory of the host that is not pinned.
  Caller caller = Caller::unknown;  ///< Asked for outside of ATen's operations only.
  std::string library = {};         ///< Of the caller, where that is `other`.
  trace::CallSite site;             ///< Taken between operations only, and where a finding may need it.
};

/// A finding, and where it belongs among the operations.
struct CudaFinding {
  Finding finding;            ///< Without module and iteration.
  std::size_t operation = 0;  ///< How many operations had begun; index + 1 of the one it happened in or behind.
  bool inside = false;        ///< It happened in that operation.
};

/// What a log sees CUDA through.
struct CudaView {
  const Cupti* cupti = nullptr;                   ///< nullptr: there is none.
  CUstream own = nullptr;                         ///< The step's stream.
  std::function<CUstream()> current_stream = {};  ///< Of the calling thread; torch's.
};

/// What runs of a step ask CUDA for, besides what the operations' trace tells: waits, queries, pinned memory, work on
/// other streams than the step's. Seen through CUPTI; where that is not to be had, torch's sync debug mode shows the
/// waits of torch itself, and notes() says so.
///
/// It is an observer, so that it knows which operation runs: put it into the OpStream of the run.
///
///     CudaCallLog log(stream);
///     log.start();
///     { OpStream watch({&recorder, &log}); step(); }
///     log.stop();
///     log.findings(recorder.trace());
///
/// Threads:  start(), stop() and what reads the log on the step's thread.
class CudaCallLog final : public trace::OpObserver {
 public:
  /// @param stream   The step's: the current one during runs.
  /// @param sources  Take call sites.
  explicit CudaCallLog(c10::cuda::CUDAStream stream, bool sources = true);
  CudaCallLog(const CudaCallLog&) = delete;
  CudaCallLog& operator=(const CudaCallLog&) = delete;
  ~CudaCallLog() override;

  /// Log also the launches on the step's stream that no operation of ATen's makes: for a capture, whose stream may be
  /// another. Before start().
  void log_all_launches() noexcept;

  /// Begins a run; forgets the calls of the one before. Outside of the run nothing listens, so that others may.
  void start();
  /// The same with another view, for tests.
  void start(CudaView view);
  void stop() noexcept;

  /// Of the last run, in order: those that a finding may come of, and those that order streams.
  [[nodiscard]] std::span<const CudaCall> calls() const noexcept;
  /// What is wrong with them: PG101, PG108, PG109, PG110, PG111, PG202, PG205, PG701, PG702, PG703, PG704.
  /// @param trace  Of the same run.
  [[nodiscard]] std::vector<CudaFinding> findings(const OpTrace& trace) const;
  /// What could not be seen in any run so far, and what concerns other threads: one sentence each.
  [[nodiscard]] std::vector<std::string> notes() const;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false, .inner = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with handlers that are still running
};

}  // namespace pianola::auditing
