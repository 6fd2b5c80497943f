#pragma once
#include "benchmark.hpp"

namespace pianola::bench {

/// A training step, plain and while it is audited.
std::vector<Case> audit_cases(const Settings& settings, c10::Device device, const Timer& timer, int iterations);

/// verify() of a captured training step, beside the steps that it runs. `synchronize` waits for the device.
Case verify_case(const Settings& settings, c10::Device device, const std::function<void()>& synchronize);

}  // namespace pianola::bench
