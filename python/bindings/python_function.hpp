#pragma once
#include <torch/csrc/utils/pybind.h>

#include <pianola/callable/callable.hpp>

#include <functional>

namespace pianola::python {

/// A Python function of tensors that returns a sequence of tensors, as C++ calls it: on any thread, without the GIL.
/// @param function  Held: it must not refer to what holds the graph, or neither is ever freed.
/// @param module    The torch.nn.Module whose forward pass it is, held weakly; None for a plain function.
Callable make_callable(const py::function& function, const py::object& module);

/// A Python function without arguments and result; empty for None.
std::function<void()> make_action(const py::object& function);

/// Calls with the GIL, and throws what Python raised in a form that a capture can explain.
py::object call_python(const py::object& function, const py::tuple& arguments = py::tuple());

}  // namespace pianola::python
