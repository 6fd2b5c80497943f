#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>

namespace pianola::auditing {

/// Where a generator stands, as a number that differs from place to place. Host work only, and cheap: no state is
/// copied out as a tensor. Takes the generator's lock. 0 for generators of other devices than CPU and CUDA.
[[nodiscard]] std::uint64_t position_of(const at::Generator& generator);

/// Whether generators of CUDA may be asked: asking for the default one would make a context.
[[nodiscard]] bool cuda_is_in_use();

}  // namespace pianola::auditing
