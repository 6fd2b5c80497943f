#pragma once
#include <bindings/held_object.hpp>

#include <c10/util/Exception.h>

#include <exception>

namespace pianola::python {

/// An exception that Python code raised for an error of torch's (RuntimeError and its subclasses), on its way through
/// C++: a capture can explain it like one that torch threw there. Where nobody does, Python gets its exception back, with
/// its traceback.
class PythonError final : public c10::Error {
 public:
  /// With the GIL.
  explicit PythonError(const py::error_already_set& raised);
  /// Sets the Python exception. With the GIL.
  void restore() const;

  /// The same for an exception object that Python handed over.
  explicit PythonError(const py::object& raised);

 private:
  HeldObject exception_;
};

/// What to throw for an exception of Python's: a PythonError for an error of torch's, else `raised` itself.
std::exception_ptr as_cpp_error(const py::error_already_set& raised);

}  // namespace pianola::python
