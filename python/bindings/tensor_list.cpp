#include <bindings/tensor_list.hpp>

#include <pianola/core/error.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <string>

namespace pianola::python {

std::vector<at::Tensor> tensors_of(const py::args& arguments) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(arguments.size());
  for (const py::handle argument : arguments) {
    if (!THPVariable_Check(argument.ptr())) [[unlikely]] {
      throw GuardError({.what = "input " + std::to_string(tensors.size() + 1) + ": captured a tensor, received " +
                                py::repr(argument).cast<std::string>() + "; nothing was launched",
                        .fix = "pass arguments as in the sample"});
    }
    tensors.push_back(THPVariable_Unpack(argument.ptr()));
  }
  return tensors;
}

py::tuple to_python(const std::vector<at::Tensor>& tensors) {
  py::tuple result(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    PyTuple_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
  }
  return result;
}

}  // namespace pianola::python
