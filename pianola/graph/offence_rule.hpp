#pragma once
#include <pianola/graph/offence.hpp>

#include <string>

namespace pianola::graph {

/// The hazard rule that an operation which reads on the host is a case of: by what it needs, how the user called it, and
/// whether it runs in backward.
[[nodiscard]] std::string host_read_rule(const OffendingOp& offender);

/// "... reads a value, which is not allowed during capture", with its place, the rule and the remedy.
[[nodiscard]] Diagnosis explain_host_read(const OffendingOp& offender, const OpTrace* trace);

/// "... copies between host and device and waits for it, which is not allowed during capture", with its place and the remedy.
[[nodiscard]] Diagnosis explain_host_copy(const OffendingOp& offender, const OpTrace* trace);

}  // namespace pianola::graph
