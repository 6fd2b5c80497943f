#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace pianola::trace {

// Note [What holds aliases]
// A tape, and whoever else keeps tensors of a step, keeps shallow copies of them: they hold the memory and this moment's
// sizes, but neither the autograd graph nor a reference to the user's tensor object, whose count autograd looks at to decide
// whether it may take a gradient over instead of copying it. requires_grad is kept because some kernels choose by it.

/// One of a tensor without memory (sparse) is the tensor itself: copying it would call operators.
[[nodiscard]] at::Tensor alias_of(const at::Tensor& tensor);
/// Of all tensors in the value; in lists, too. Other values are the same.
[[nodiscard]] c10::IValue alias_values(const c10::IValue& value);

}  // namespace pianola::trace
