#pragma once
#include <ATen/core/Tensor.h>

#include <span>

namespace pianola::callable {

/// Copies each of `given` into the one of `fixed` at its place, on the current stream; skips those that are the same
/// memory already. Shapes and dtypes are equal, `fixed` is dense. Tensors of `given` that are undefined are taken for
/// zeros.
void copy_into(std::span<const at::Tensor> fixed, std::span<const at::Tensor> given);

}  // namespace pianola::callable
