#pragma once
#include <pianola/graph/options.hpp>
#include <pianola/parallel/branch_info.hpp>
#include <pianola/parallel/plan.hpp>
#include <pianola/parallel/step_units.hpp>

#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace pianola::graph {

/// A rebuilt graph has to be so much faster than the captured one, by the model to be made and by the clock to be taken.
inline constexpr double kLeastGain = 0.02;

/// Whether a capture with these options is to be rebuilt.
inline bool wants_branches(const CaptureOptions& options) noexcept {
  return options.branches > 1 || (options.branches == kAutoBranches && options.trace);
}

/// @throws UsageError  One of them is out of range.
void check_branches(int branches, const ParallelOptions& parallel);

/// What is asked for, with nothing done yet; where it is more than there can be, less, and a warning.
BranchInfo requested_branches(const CaptureOptions& options);

/// Plans a step and fills in what the plan tells. Nothing where the step has to stay as it is, or would gain nothing:
/// `info.reason` says why.
std::optional<parallel::Plan> plan_branches(parallel::StepUnits step, BranchInfo& info);

/// Proves a graph with these edges. False: `info.reason` says what is not ordered.
bool prove_branches(const parallel::Plan& plan, std::size_t nodes, std::span<const parallel::NodeEdge> edges,
                    BranchInfo& info);

/// For tests: what is called with the edges of every plan on this thread before a graph is made of them.
std::function<void(std::vector<parallel::NodeEdge>&)>& tamper_with_planned_edges();

}  // namespace pianola::graph
