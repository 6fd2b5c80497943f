#pragma once
#include <torch/csrc/utils/pybind.h>

#include <ATen/core/ivalue.h>

namespace pianola::python {

/// A state dict and the like: None, bool, int, float, str, tensors, and dicts, lists and tuples of these. Nothing is
/// copied but the containers. Both with the GIL.
///
/// @throws py::type_error  Something else is in it; names it and its place.
c10::IValue as_plain_value(const py::handle& object);
py::object as_python(const c10::IValue& value);

}  // namespace pianola::python
