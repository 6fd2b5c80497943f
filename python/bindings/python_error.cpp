#include <bindings/python_error.hpp>

#include <string>

namespace pianola::python {
namespace {

std::string text_of(const py::object& exception) { return py::str(exception).cast<std::string>(); }

}  // namespace

// Without a backtrace: Python's traceback is part of the exception.
PythonError::PythonError(const py::object& raised) : c10::Error(text_of(raised), nullptr), exception_(raised) {}

PythonError::PythonError(const py::error_already_set& raised) : PythonError(raised.value()) {}

void PythonError::restore() const {
  const py::object raised = exception_.get();
  PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());  // the traceback is part of it
}

std::exception_ptr as_cpp_error(const py::error_already_set& raised) {
  if (raised.matches(PyExc_RuntimeError)) return std::make_exception_ptr(PythonError(raised));
  return std::make_exception_ptr(raised);
}

}  // namespace pianola::python
