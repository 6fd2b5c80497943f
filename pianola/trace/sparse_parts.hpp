#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/SparseTensorUtils.h>

namespace pianola::trace {

/// Calls use(part) for the tensors that the values of a tensor lie in: for itself, and where it is sparse (COO) for its indices and
/// its values. Makes no operation.
template <typename Function>
void for_each_part(const at::Tensor& tensor, const Function& use) {
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kSparse) return use(tensor);
  const auto* const sparse = at::sparse::get_sparse_impl(tensor);
  use(sparse->indices());
  use(sparse->values());
}

}  // namespace pianola::trace
