#pragma once
#include <pianola/trace/made_of_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/native/SparseTensorUtils.h>

namespace pianola::trace {

/// Calls use(part) for the tensors that the values of a tensor lie in: for itself, where it is sparse (COO) for its indices and its
/// values, and where its operators are Python for the plain tensors that it holds. Makes no operation.
template <typename Function>
void for_each_part(const at::Tensor& tensor, const Function& use) {
  if (!tensor.defined()) return;
  if (tensor.layout() == at::kSparse) {
    const auto* const sparse = at::sparse::get_sparse_impl(tensor);
    use(sparse->indices());
    use(sparse->values());
  } else if (is_made_of_tensors(tensor)) {
    for (const at::Tensor& part : tensors_inside_of(tensor)) for_each_part(part, use);
  } else {
    use(tensor);
  }
}

}  // namespace pianola::trace
