#pragma once
#include <torch/csrc/utils/pybind.h>

#include <cxxabi.h>

#include <stdexcept>

namespace pianola::python {

// Methods that each call of a graphed function makes: pybind11 takes longer to call one than they take.

/// What an object of a bound class holds; nullptr before it is made.
template <class Held>
Held* held_by(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  return instance->simple_layout ? static_cast<Held*>(instance->simple_value_holder[0]) : nullptr;
}

/// Calls a method of what `self` holds; what it throws becomes Python's error, as in a method of pybind11's.
template <class Held, class Method>
PyObject* call_method(PyObject* self, const Method& method) {
  try {
    Held* const held = held_by<Held>(self);
    if (held == nullptr) throw std::logic_error("the object was not initialised");
    return method(*held);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

template <class Held>
void add_method(py::class_<Held>& type, PyMethodDef& method) {
  auto* const object = reinterpret_cast<PyTypeObject*>(type.ptr());
  type.attr(method.ml_name) = py::reinterpret_steal<py::object>(PyDescr_NewMethod(object, &method));
}

}  // namespace pianola::python
