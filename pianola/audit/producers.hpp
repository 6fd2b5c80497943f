#pragma once
#include <pianola/audit/observed_runs.hpp>

#include <optional>

namespace pianola::auditing {

/// The last operation before `at` that wrote a tensor's memory; nothing: it was written outside the step.
[[nodiscard]] std::optional<OpAt> producer_of(const ObservedRuns& runs, OpAt at, const TensorRecord& tensor);

/// Whether what the operation reads says if there is a NaN or an infinity: isnan().any(), isfinite(norm), x != x.
[[nodiscard]] bool reads_nan_check(const ObservedRuns& runs, OpAt at);

}  // namespace pianola::auditing
