#pragma once
#include <torch/csrc/utils/pybind.h>

namespace pianola::python {

/// explain_wrong_arguments(explain): from now on functions of the module that are given arguments they do not take raise a
/// TypeError with the text that `explain(text, args, kwargs)` returns for pybind11's, which lists all signatures.
void bind_wrong_arguments(py::module_& module);

}  // namespace pianola::python
