#pragma once
#include <pianola/audit/observed_runs.hpp>
#include <pianola/audit/options.hpp>
#include <pianola/audit/report.hpp>
#include <pianola/core/error.hpp>

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pianola::auditing {

/// What a capture of the step said.
struct Trial {
  std::optional<Diagnosis> refusal;   ///< Why it could not be captured.
  std::string thrown = {};            ///< What the step itself threw while it was captured.
  std::string between_failed = {};    ///< What `between` threw behind a capture, which leaves gradients as they were.
  std::vector<std::string> warnings;  ///< Of a capture that went well.
  std::optional<Finding> other_path;  ///< Where the captured step runs other operations than the last eager run did.
  std::vector<Finding> kernel_findings;  ///< CUDA: arguments of kernels that change between captures.
};

/// Captures the step once and drops the graph; where that goes well, compares the arguments of its kernels. State is
/// put back, but for what `between` does.
/// @param eager  The trace of the last eager run.
[[nodiscard]] Trial try_capture_of(c10::Device device, const std::function<void()>& step,
                                   const std::function<void()>& between, const OpTrace& eager,
                                   const AuditOptions& options);

/// What the trial adds to the findings that are there. A refusal tells the first thing that broke the capture: where one
/// that does is known already, or one by its rule or at its line, it is no news.
void add_trial(const Trial& trial, const ObservedRuns& runs, AuditReport& report);

}  // namespace pianola::auditing
