#include <bindings/same_value.hpp>

#include <bindings/bindings.hpp>

#include <torch/csrc/Device.h>

#include <cstring>

namespace pianola::python {
namespace {

constexpr int kDeepestValue = 32;  // beyond it, and where a container holds itself, values differ

bool same(PyObject* one, PyObject* other, int depth);

// Of types whose comparison is C's, and cannot fail.
bool are_equal(PyObject* one, PyObject* other) {
  const int equal = PyObject_RichCompareBool(one, other, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool same_float(PyObject* one, PyObject* other) {
  const double values[] = {PyFloat_AS_DOUBLE(one), PyFloat_AS_DOUBLE(other)};
  return std::memcmp(&values[0], &values[1], sizeof(double)) == 0;
}

bool same_complex(PyObject* one, PyObject* other) {
  const Py_complex values[] = {PyComplex_AsCComplex(one), PyComplex_AsCComplex(other)};
  return std::memcmp(&values[0], &values[1], sizeof(Py_complex)) == 0;
}

bool same_tuples(PyObject* one, PyObject* other, int depth) {
  const Py_ssize_t size = PyTuple_GET_SIZE(one);
  if (size != PyTuple_GET_SIZE(other)) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!same(PyTuple_GET_ITEM(one, i), PyTuple_GET_ITEM(other, i), depth)) return false;
  }
  return true;
}

bool same_lists(PyObject* one, PyObject* other, int depth) {
  const Py_ssize_t size = PyList_GET_SIZE(one);
  if (size != PyList_GET_SIZE(other)) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!same(PyList_GET_ITEM(one, i), PyList_GET_ITEM(other, i), depth)) return false;
  }
  return true;
}

// In one order: whoever goes through them sees it.
bool same_dicts(PyObject* one, PyObject* other, int depth) {
  if (PyDict_GET_SIZE(one) != PyDict_GET_SIZE(other)) return false;
  Py_ssize_t at = 0, at_other = 0;
  PyObject *key = nullptr, *value = nullptr, *other_key = nullptr, *other_value = nullptr;
  while (PyDict_Next(one, &at, &key, &value) != 0) {
    if (PyDict_Next(other, &at_other, &other_key, &other_value) == 0) return false;
    if (!same(key, other_key, depth) || !same(value, other_value, depth)) return false;
  }
  return true;
}

bool same_sets(PyObject* one, PyObject* other, int depth) {
  if (PySet_GET_SIZE(one) != PySet_GET_SIZE(other)) return false;
  const py::object left = py::reinterpret_steal<py::object>(PyObject_GetIter(one));
  const py::object right = py::reinterpret_steal<py::object>(PyObject_GetIter(other));
  while (left && right) {
    const py::object value = py::reinterpret_steal<py::object>(PyIter_Next(left.ptr()));
    const py::object other_value = py::reinterpret_steal<py::object>(PyIter_Next(right.ptr()));
    if (!value || !other_value) {
      PyErr_Clear();
      return !value && !other_value;
    }
    if (!same(value.ptr(), other_value.ptr(), depth)) return false;
  }
  PyErr_Clear();
  return false;
}

class Buffer {
 public:
  explicit Buffer(PyObject* object) : taken_(PyObject_GetBuffer(object, &view_, PyBUF_RECORDS_RO) == 0) {
    if (!taken_) PyErr_Clear();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (taken_) PyBuffer_Release(&view_);
  }

  [[nodiscard]] bool equals(const Buffer& other) const {
    if (!taken_ || !other.taken_ || view_.len != other.view_.len || view_.ndim != other.view_.ndim) return false;
    if (view_.itemsize != other.view_.itemsize || std::strcmp(format(), other.format()) != 0) return false;
    for (int i = 0; i < view_.ndim; ++i) {
      if (view_.shape[i] != other.view_.shape[i]) return false;
    }
    const bool plain = PyBuffer_IsContiguous(&view_, 'C') != 0 && PyBuffer_IsContiguous(&other.view_, 'C') != 0;
    return plain && std::memcmp(view_.buf, other.view_.buf, static_cast<std::size_t>(view_.len)) == 0;
  }

 private:
  [[nodiscard]] const char* format() const { return view_.format == nullptr ? "B" : view_.format; }

  Py_buffer view_ = {};
  bool taken_;
};

PyObject* content_of(PyObject* cell) { return PyCell_Check(cell) != 0 ? PyCell_GET(cell) : nullptr; }

bool same_or_null(PyObject* one, PyObject* other, int depth) {
  return one == other || (one != nullptr && other != nullptr && same(one, other, depth));
}

bool same_functions(PyObject* one, PyObject* other, int depth) {
  if (PyFunction_GET_CODE(one) != PyFunction_GET_CODE(other)) return false;
  if (PyFunction_GET_GLOBALS(one) != PyFunction_GET_GLOBALS(other)) return false;
  if (!same_or_null(PyFunction_GET_DEFAULTS(one), PyFunction_GET_DEFAULTS(other), depth)) return false;
  if (!same_or_null(PyFunction_GET_KW_DEFAULTS(one), PyFunction_GET_KW_DEFAULTS(other), depth)) return false;
  PyObject* const cells = PyFunction_GET_CLOSURE(one);
  PyObject* const other_cells = PyFunction_GET_CLOSURE(other);
  if (cells == nullptr || other_cells == nullptr) return cells == other_cells;
  if (PyTuple_GET_SIZE(cells) != PyTuple_GET_SIZE(other_cells)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); ++i) {
    PyObject* const content = content_of(PyTuple_GET_ITEM(cells, i));
    if (!same_or_null(content, content_of(PyTuple_GET_ITEM(other_cells, i)), depth)) return false;
  }
  return true;
}

PyTypeObject* partial_type() {
  static PyObject* const type = py::object(py::module_::import("functools").attr("partial")).release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}

bool same_partials(PyObject* one, PyObject* other, int depth) {
  for (const char* const part : {"func", "args", "keywords"}) {
    const py::object left = py::reinterpret_steal<py::object>(PyObject_GetAttrString(one, part));
    const py::object right = py::reinterpret_steal<py::object>(PyObject_GetAttrString(other, part));
    if (!left || !right || !same(left.ptr(), right.ptr(), depth)) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

bool same_slices(PyObject* one, PyObject* other, int depth) {
  const auto* const left = reinterpret_cast<PySliceObject*>(one);
  const auto* const right = reinterpret_cast<PySliceObject*>(other);
  return same(left->start, right->start, depth) && same(left->stop, right->stop, depth) &&
         same(left->step, right->step, depth);
}

// Of two values of one type that are two objects.
bool same_of_type(PyObject* one, PyObject* other, int depth) {
  if (PyBool_Check(one) || one == Py_None) return false;
  if (PyFloat_Check(one)) return same_float(one, other);
  if (PyLong_CheckExact(one) || PyUnicode_CheckExact(one) || PyBytes_CheckExact(one) || THPDevice_Check(one)) {
    return are_equal(one, other);
  }
  if (PyComplex_CheckExact(one)) return same_complex(one, other);
  if (PyTuple_Check(one)) return same_tuples(one, other, depth);  // a named one as well
  if (PyList_CheckExact(one)) return same_lists(one, other, depth);
  if (PyDict_CheckExact(one)) return same_dicts(one, other, depth);
  if (PyAnySet_CheckExact(one)) return same_sets(one, other, depth);
  if (PySlice_Check(one)) return same_slices(one, other, depth);
  if (PyRange_Check(one)) return are_equal(one, other);
  if (PyFunction_Check(one)) return same_functions(one, other, depth);
  if (PyMethod_Check(one)) {
    return PyMethod_GET_SELF(one) == PyMethod_GET_SELF(other) &&
           same(PyMethod_GET_FUNCTION(one), PyMethod_GET_FUNCTION(other), depth);
  }
  if (Py_TYPE(one) == partial_type()) return same_partials(one, other, depth);
  return PyObject_CheckBuffer(one) != 0 && Buffer(one).equals(Buffer(other));
}

bool same(PyObject* one, PyObject* other, int depth) {
  if (one == other) return true;
  return Py_TYPE(one) == Py_TYPE(other) && depth > 0 && same_of_type(one, other, depth - 1);
}

}  // namespace

bool same_value(PyObject* one, PyObject* other) noexcept { return same(one, other, kDeepestValue); }

bool is_simple(PyObject* value) noexcept {
  return value == Py_None || PyBool_Check(value) || PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
         PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) || PyComplex_CheckExact(value);
}

void bind_same_value(py::module_& module) {
  module.def(
      "same_value", [](const py::handle& one, const py::handle& other) { return same_value(one.ptr(), other.ptr()); },
      py::arg("one"), py::arg("other"),
      "Whether no program can tell two values apart: equal in type and to the bit, or the same object.");
}

}  // namespace pianola::python
