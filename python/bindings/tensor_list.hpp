#pragma once
#include <torch/csrc/utils/pybind.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace pianola::python {

/// Built by hand: on the hot path a cast by pybind11 would copy the list twice.
/// @throws GuardError  One is no tensor.
std::vector<at::Tensor> tensors_of(const py::args& arguments);
py::tuple to_python(const std::vector<at::Tensor>& tensors);

}  // namespace pianola::python
