#pragma once
#include <torch/csrc/utils/pybind.h>

namespace pianola::python {

/// Hooks of tensors, as Python keeps them. Part of bind_callable().
void bind_tensor_hooks(py::module_& module);

}  // namespace pianola::python
