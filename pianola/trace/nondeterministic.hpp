#pragma once
#include <pianola/trace/op_trace.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pianola::trace {

/// Operators of the trace that may give other bits from run to run, so that two replays of one graph may differ too.
/// Each once, in order. None where torch takes deterministic algorithms.
std::vector<std::string> nondeterministic_operators(const OpTrace& trace);

/// Every operator (without overload) that nondeterministic_operators() knows: a test asks torch for each.
std::vector<std::string_view> nondeterministic_names();

}  // namespace pianola::trace
