#pragma once
#include <torch/csrc/Event.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>

namespace pianola::python {

// What the interpreter tells of an object in a word or two, for those who look at many objects at each call.

inline py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// A name to keep, so that a look-up hashes nothing.
inline PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// The interpreter gives each dictionary another number whenever it changes, and never the same to two of them. 0: it does not:
// from Python 3.13 on the numbers of dictionaries that share their values with an object stay what they are when an attribute
// of the object is stored, from 3.14 on there are none.
#if PY_VERSION_HEX < 0x030E0000
inline std::uint64_t version_of_dict(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  if (reinterpret_cast<PyDictObject*>(dict)->ma_values != nullptr) return 0;
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
}
#else
inline std::uint64_t version_of_dict(PyObject*) { return 0; }
#endif

// 0: it has none at the moment. Up to Python 3.12 a flag says so, which stays unset from then on.
inline std::uint64_t version_of_type(PyObject* object) {
  const auto* const type = reinterpret_cast<PyTypeObject*>(object);
#if PY_VERSION_HEX < 0x030D0000
  if (PyType_HasFeature(reinterpret_cast<PyTypeObject*>(object), Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

// Borrowed; null where it is dead.
inline PyObject* alive(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference, &object) != 1) return nullptr;
  Py_DECREF(object);  // whoever asks compares it, or has the GIL and the object's owner
  return object;
#else
  PyObject* const object = PyWeakref_GET_OBJECT(reference);
  return object == Py_None ? nullptr : object;
#endif
}

// Borrowed from the object; null where it has none.
inline PyObject* dict_of(PyObject* object) {
  PyObject* const dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);
  return dict;
}

// Not a stream or an event of CUDA: when they end they do not tell their weak references (torch's THCPStream_dealloc).
inline bool can_be_held_weakly(PyObject* object) {
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) != 0 && !PyObject_TypeCheck(object, THPStreamClass) &&
         !PyObject_TypeCheck(object, THPEventClass);
}

inline py::object weakly(PyObject* object) {
  PyObject* const reference = PyWeakref_NewRef(object, nullptr);
  if (reference == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(reference);
}

}  // namespace pianola::python
