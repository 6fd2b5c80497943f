#pragma once
#include <pianola/core/error.hpp>
#include <pianola/cuda/executable.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <optional>

namespace pianola::graph {

/// Why an executable could not take over a capture whose operations are those of the earlier one: names the first operation that made
/// other nodes. `where` ends with the node that CUDA named, if it did.
[[nodiscard]] Diagnosis explain_refused_update(const UpdateRefusal& refusal, const OpTrace& captured,
                                               const OpTrace& now);

/// Why it may not take over one with another number of nodes that copy inputs, which replays switch off: CUDA might pair one with a copy
/// of the step's, and leave that off. nullopt: there are as many.
[[nodiscard]] std::optional<Diagnosis> explain_other_copies(std::size_t captured, std::size_t now);

}  // namespace pianola::graph
