#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pianola::fp8 {

/// What pianola::fp8_update_scales_ does (Note [Delayed scales]), by operators that torch has on all devices.
/// @param limits   float32 [tensors]: the largest numbers of their types.
/// @param divisor  2^margin.
void update_by_operators(const at::Tensor& history, const at::Tensor& scale, const at::Tensor& updates,
                         const at::Tensor& limits, double divisor, bool most_recent, std::int64_t interval);

}  // namespace pianola::fp8
