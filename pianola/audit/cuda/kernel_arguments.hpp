#pragma once
#include <pianola/audit/options.hpp>
#include <pianola/audit/report.hpp>

#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace pianola::auditing {

// Note [Arguments that change]
// ATen's operations show their numbers and tensors to the trace. Other kernels (custom ones, Triton's) show only the
// bytes that they are launched with, and a graph freezes those. So the step is captured twice from the same state, and
// once more after the training loop went on, and the bytes are compared. What differs between the first two is noise
// (slots of a struct that the caller never filled hold what was on its stack), unless it goes on by the same step: a
// counter that the step itself advances. What differs in the third alone was changed by the training loop.

/// Captures `step` on `device` three times, calls `between` before the last, and reports what the kernels that no ATen
/// operation launches are given another time: PG302 for values, PG405 for addresses. The graphs are never run and are
/// dropped, state is put back; what `between` does stays, as in the runs before.
///
/// Empty where the step cannot be captured: whoever captures it for its own sake has the error.
/// Whatever else `step` or `between` throw reaches the caller.
[[nodiscard]] std::vector<Finding> compare_captures(c10::Device device, const std::function<void()>& step,
                                                    const std::function<void()>& between, const AuditOptions& options);

}  // namespace pianola::auditing
