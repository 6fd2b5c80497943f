#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace pianola::trace {

// Note [Tensors whose operators are Python]
// A DTensor, or what a functional collective returns, has no memory of its own: the Python that its operators run calls operators
// on the plain tensors that it holds, and these calls are the operations, as below a composite. What has not been met before Python
// finds out with fake tensors, on which nothing is computed. A parameter may be such a tensor, and so is its gradient then, which the
// graph of a whole step leaves as any other. These are torch.distributed's own classes: what another subclass keeps beside its tensors (a
// scale, a count) nobody watches, and one with memory of its own is another matter. Those are not plain.

/// Whether it is such a tensor.
[[nodiscard]] bool is_made_of_tensors(const at::Tensor& tensor) noexcept;
/// The tensors that it holds, by its __tensor_flatten__; none where its class tells nobody.
[[nodiscard]] std::vector<at::Tensor> tensors_inside_of(const at::Tensor& tensor);
/// How many references Python has to the tensor's object; 0 where it has not seen it.
[[nodiscard]] std::size_t references_of_python(const at::Tensor& tensor) noexcept;
/// Another one that is made of the same tensors, by its __tensor_unflatten__; itself where its class has none.
[[nodiscard]] at::Tensor made_anew(const at::Tensor& tensor);
/// Whether a call on such a tensor, made now, leads to calls of operators on plain tensors, which are seen in its place.
[[nodiscard]] bool is_taken_apart_by_python(const at::Tensor& tensor);
/// Whether calls of operators compute nothing, as torch.func's and DTensor's Python asks for shapes alone (FakeTensorMode).
[[nodiscard]] bool computes_shapes_alone();
/// Whether this thread runs, in a recording, the Python of such a tensor's operators now.
[[nodiscard]] PIANOLA_API bool runs_python_of_a_tensor() noexcept;

/// What only Python knows of them. Each takes Python's lock where it needs it.
struct TensorLook {
  bool (*is_of_torch_distributed)(const at::Tensor& tensor) noexcept;  ///< Its class.
  std::vector<at::Tensor> (*tensors_inside_of)(const at::Tensor& tensor);
  at::Tensor (*made_anew)(const at::Tensor& tensor);
  std::size_t (*references_of)(const at::Tensor& tensor) noexcept;
};
/// For the Python package, at import.
PIANOLA_API void set_tensor_look(const TensorLook& look) noexcept;

}  // namespace pianola::trace
