#pragma once
#include <ATen/core/Tensor.h>

namespace pianola::trace {

// Note [Leaves that hooks give back]
// Where hooks on saved tensors are set (torch.utils.checkpoint without reentry, save_on_cpu), autograd keeps of a leaf that
// a backward pass needs only what the hook made of it. For the backward pass it makes another tensor around what the hook
// gives back: a leaf that requires grad and that lives for one operation. Its gradients, if it had any, would go where those
// of the parameter go. If it looks at the parameter's memory it stands for the parameter.

/// The leaf that it stands for: itself, nearly always.
[[nodiscard]] at::Tensor real_leaf(const at::Tensor& tensor);

}  // namespace pianola::trace
