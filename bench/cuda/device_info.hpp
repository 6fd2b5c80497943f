#pragma once
#include "machine.hpp"

namespace pianola::bench::cuda {

bool is_available();

/// Name, memory and driver of the first device; empty where there is none.
Machine describe_device();

}  // namespace pianola::bench::cuda
