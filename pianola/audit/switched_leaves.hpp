#pragma once
#include <pianola/audit/observed_runs.hpp>
#include <pianola/audit/report.hpp>

#include <vector>

namespace pianola::auditing {

/// What was frozen, and what was unfrozen, between two runs that do not do the same: one finding each (PG501), at the first
/// operation that uses it. requires_grad decides what a backward pass computes, so that its operations differ, and what
/// they take and make.
[[nodiscard]] std::vector<Finding> switched_leaves(const ObservedRuns& runs, const RunPair& pair);

}  // namespace pianola::auditing
