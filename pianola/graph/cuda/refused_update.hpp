#pragma once
#include <pianola/core/error.hpp>
#include <pianola/cuda/executable.hpp>
#include <pianola/trace/op_trace.hpp>

namespace pianola::graph {

/// Why an executable could not take over a capture whose operations are those of the earlier one: names the first operation that made
/// other nodes. `where` ends with the node that CUDA named, if it did.
[[nodiscard]] Diagnosis explain_refused_update(const UpdateRefusal& refusal, const OpTrace& captured,
                                               const OpTrace& now);

}  // namespace pianola::graph
