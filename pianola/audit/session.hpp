#pragma once
#include <pianola/audit/options.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::auditing {

/// What the runs of a step looked like from outside ATen, told by the language that the step is written in.
struct RunBoundary {
  /// Arguments of the step, which a graph copies into its own memory.
  std::vector<at::Tensor> inputs = {};
  /// Tensors by name as they are now: "model.0.weight", "cache" (a variable). Looked up by the memory they look at.
  std::vector<NamedTensor> names = {};
};

/// One audit, run by run: for callers that run the step themselves (pianola::audit, the Python package).
///
///     Session session(options);
///     for (...) { session.begin(boundary); step(); session.end(results); between(); }
///     session.try_capture(step, between);
///     AuditReport report = session.finish();
///
/// Threads:  All calls on one thread, which runs the step between begin() and end().
class PIANOLA_API Session {
 public:
  /// @throws UsageError  An option is out of range, or a capture is open on this thread.
  explicit Session(AuditOptions options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Puts state back if finish() did not.
  ~Session();

  /// A run that is not compared: state is saved from here on, nothing else.
  void begin_warmup();
  void end_warmup();

  void begin(RunBoundary boundary = {});
  /// @param results  What the step returned, in order.
  void end(const std::vector<at::Tensor>& results = {});
  /// The run that began threw: notes it as a finding (PG1202) unless a finding explains it already.
  void end_by(std::exception_ptr error, const std::string& message, const SourcePlace& place);

  /// The step entered a module, by its path ("encoder.layers.3"), or left it: operations in between are its. On the
  /// thread of the step; cheap.
  void enter_module(const std::string& path);
  void leave_module();
  /// How many operations began in this run: for ordering what others saw.
  [[nodiscard]] std::uint64_t operations() const noexcept;

  /// A hazard that was found elsewhere.
  void add(Finding finding);
  void add_note(std::string note);

  /// Captures the step, and reports what stands in the way and was not found before. On CUDA compares the arguments of
  /// kernels over captures; `between` is called once then. State is put back. The graphs are dropped.
  void try_capture(const std::function<void()>& step, const std::function<void()>& between = {});

  /// Compares the runs. Puts state back, where the options say so.
  [[nodiscard]] AuditReport finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola::auditing
