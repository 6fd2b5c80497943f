#pragma once
#include "benchmark.hpp"

namespace pianola::bench {

/// A forward that builds its autograd graph, plain and while its operations are traced with inputs and outputs.
Case trace_case(const Settings& settings, c10::Device device, const Timer& timer, int iterations);

}  // namespace pianola::bench
