#include <bindings/bindings.hpp>

#include <pianola/trace/compiled_code.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace pianola::python {
namespace {

// Nothing is called of torch's that an observer could see.
at::Tensor outline_of(const at::Tensor& tensor) {
  const c10::InferenceMode same_kind(tensor.is_inference());  // which decides about the keys of what is made under it
  c10::Storage nothing(c10::Storage::use_byte_size_t{}, 0, at::DataPtr(nullptr, tensor.device()), /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(std::move(nothing), tensor.key_set(), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.requires_grad()) result.unsafeGetTensorImpl()->set_requires_grad(true);
  return result;
}

}  // namespace

void bind_compiled_code(py::module_& module) {
  module.def("outline_of", &outline_of, py::arg("tensor"),
             "A tensor of the same sizes, strides, type and keys that has no memory.");
  module.def("operations_are_watched", &trace::operations_are_watched,
             "Whether an observer sees the operations of this thread now.");
  module.def("note_compiled_code", &trace::note_compiled_code, py::arg("what"), py::arg("is_new") = false,
             "The observed step runs code of torch.compile's that no graph can hold, or that it has just made.");
}

}  // namespace pianola::python
