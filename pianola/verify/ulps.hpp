#pragma once
#include <ATen/core/Tensor.h>

namespace pianola::verification {

/// How many representable numbers lie between each two elements, as int64 on their device: 0 between -0 and +0 and
/// between two NaN, the largest value between NaN and a number, and where the true count would not fit.
/// Both are floating-point tensors with a sign, neither complex nor Float8_e8m0fnu, of one dtype, shape and device.
at::Tensor ulps_between(const at::Tensor& one, const at::Tensor& other);

}  // namespace pianola::verification
