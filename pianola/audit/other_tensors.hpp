#pragma once
#include <pianola/audit/observed_runs.hpp>
#include <pianola/trace/op_trace.hpp>

#include <string>

namespace pianola::auditing {

// Note [Replaced, or another one]
// Where two runs give another tensor to the same operation, somebody replaced it: the name, or the leaf, that stood for the
// first stands for the second now. Or nobody did: both are there in both runs, and the step took the other one, as
// `layers[k](x)` does. A gradient is another one as its leaf is.

/// One argument of one operation, as two runs saw it.
struct ArgumentPair {
  OpAt a, b;
  TensorRecord in_a, in_b;
};

/// Whether the later run uses another parameter, its gradient, or a tensor of another module, and nobody replaced the one
/// of the earlier run. See Note [Replaced, or another one].
[[nodiscard]] bool uses_other_parameter(const ObservedRuns& runs, const ArgumentPair& pair);

/// Whether both are there, under names of their own, in both runs.
[[nodiscard]] bool both_stay(const ObservedRuns& runs, const ArgumentPair& pair);

/// "another iteration uses 'layers.1.weight' instead of 'layers.0.weight'"
[[nodiscard]] std::string other_tensor_words(const ObservedRuns& runs, const ArgumentPair& pair);

}  // namespace pianola::auditing
