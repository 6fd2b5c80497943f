#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

/// Whether autograd keeps something for hooks of this leaf. Where it does not there are none.
bool may_have_hooks(const torch::autograd::AutogradMeta& meta) noexcept;
/// Whether it has hooks of its own: of its gradient, or called when that was added to `.grad`.
bool has_own_hooks(const at::Tensor& leaf);

/// Python keeps the hooks of a tensor in a dictionary, which stays when the last of them was removed. This tells whether
/// it is empty, and so are all other hooks of the leaf.
PIANOLA_API void tell_empty_hooks_by(bool (*are_empty)(const at::Tensor& leaf));

}  // namespace pianola::callable
