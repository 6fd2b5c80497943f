#pragma once
#include "machine.hpp"
#include "result.hpp"

#include <span>
#include <string>

namespace pianola::bench {

/// Aligned tables, one per case, and a line for each requirement.
std::string to_text(const Result& result);
/// One object: the machine, the command, and the results with all their samples; see bench/results/README.md.
std::string to_json(std::span<const Result> results, const Machine& machine, const std::string& command);

}  // namespace pianola::bench
