#pragma once
#include <bindings/gil.hpp>

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace pianola::python {

/// A Python object in the hands of C++: may be copied, moved and destroyed on any thread, with the GIL or without, also
/// when the interpreter has ended.
class HeldObject {
 public:
  explicit HeldObject(py::object object) : object_(object.release().ptr(), &let_go) {}

  /// With the GIL.
  [[nodiscard]] py::object get() const { return py::reinterpret_borrow<py::object>(object_.get()); }

 private:
  // An interpreter that is ending takes its objects with it, and no longer gives its lock to other threads.
  static void let_go(PyObject* object) {
    if (Py_IsInitialized() == 0 || Py_IsFinalizing() != 0) return;
    const WithGil gil;
    Py_DECREF(object);
  }

  std::shared_ptr<PyObject> object_;
};

}  // namespace pianola::python
