#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace pianola::trace {

/// All bytes of a storage, whatever tensors look at it: a tensor of uint8 on its memory.
at::Tensor bytes_of(const c10::Storage& storage);

}  // namespace pianola::trace
