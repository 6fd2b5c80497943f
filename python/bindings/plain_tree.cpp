#include <bindings/bindings.hpp>
#include <bindings/object_words.hpp>
#include <bindings/plain_tree.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace pianola::python {
namespace {

constexpr int kDeepest = 64;  // beyond it, and where a container holds itself, pytree has the word

bool is_plain_value(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object) || PyBool_Check(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object) || PyComplex_CheckExact(object) || PyBytes_CheckExact(object);
}

// Of types whose values are equal only to their own: 1, 1.0 and True are one key to a dict that remembers structures.
bool is_plain_key(PyObject* key) { return PyUnicode_CheckExact(key) || PyLong_CheckExact(key); }

// Types that pytree takes apart.
PyObject* pytree_nodes() {
  static PyObject* const nodes =
      py::module_::import("torch.utils._pytree").attr("SUPPORTED_NODES").cast<py::object>().release().ptr();
  return nodes;
}

}  // namespace

bool is_opaque_object(PyObject* object) {
  static PyObject* const fields_name = interned("__dataclass_fields__");
  PyTypeObject* const type = Py_TYPE(object);
  if (type->tp_dictoffset == 0 || !can_be_held_weakly(object)) return false;
  if (PyType_Check(object) || THPVariable_Check(object)) return false;
  if (PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyObject_CheckBuffer(object))
    return false;
  if (_PyType_Lookup(type, fields_name) != nullptr) return false;
  const int is_node = PyDict_Contains(pytree_nodes(), reinterpret_cast<PyObject*>(type));
  if (is_node < 0) PyErr_Clear();
  return is_node == 0;
}

void PlainTree::open(char kind, Py_ssize_t size) {
  outline += kind;
  std::array<char, 20> digits{};
  outline.append(digits.data(), std::to_chars(digits.begin(), digits.end(), size).ptr);
}

bool PlainTree::take_entry(PyObject* key, PyObject* value, int depth) {
  keys.push_back(key);
  return is_plain_key(key) && take_apart(value, depth + 1);
}

bool PlainTree::take_apart(PyObject* tree, int depth) {
  const bool is_tensor = THPVariable_CheckExact(tree);
  if (is_tensor || is_plain_value(tree)) {
    leaves.push_back(tree);
    outline += is_tensor ? 'T' : '*';
    return true;
  }
  if (depth == kDeepest) return false;
  if (PyDict_CheckExact(tree)) {
    open('{', PyDict_GET_SIZE(tree));
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(tree, &at, &key, &value) != 0) {
      if (!take_entry(key, value, depth)) return false;
    }
    return true;
  }
  const bool is_tuple = PyTuple_CheckExact(tree);
  if (!is_tuple && !PyList_CheckExact(tree)) return takes_objects_ && take_object(tree);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(tree);
  open(is_tuple ? '(' : '[', size);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!take_apart(PySequence_Fast_GET_ITEM(tree, i), depth + 1)) return false;
  }
  return true;
}

bool PlainTree::take_object(PyObject* object) {
  if (!is_opaque_object(object)) return false;
  leaves.push_back(object);
  outline += 'O';
  return true;
}

bool PlainTree::take_arguments_apart(PyObject* args, PyObject* kwargs) {
  takes_objects_ = true;
  open('(', 2);
  if (!take_apart(args, 1)) return false;
  c10::SmallVector<std::pair<PyObject*, PyObject*>, 8> entries;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(kwargs, &at, &key, &value) != 0) {
    if (!PyUnicode_CheckExact(key)) return false;
    entries.emplace_back(key, value);
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& one, const auto& other) { return PyUnicode_Compare(one.first, other.first) < 0; });
  open('{', static_cast<Py_ssize_t>(entries.size()));
  return std::all_of(entries.begin(), entries.end(),
                     [&](const auto& entry) { return take_entry(entry.first, entry.second, 1); });
}

std::vector<at::Tensor> PlainTree::tensors() const {
  std::vector<at::Tensor> result;
  result.reserve(leaves.size());
  for (PyObject* const leaf : leaves) {
    if (THPVariable_CheckExact(leaf)) result.push_back(THPVariable_Unpack(leaf));
  }
  return result;
}

namespace {

// Reads an outline, and makes what it says.
template <class NextTensor>
class Builder {
 public:
  Builder(const py::handle& outline, const py::handle& frozen, NextTensor next_tensor)
      : frozen_(frozen), next_tensor_(std::move(next_tensor)) {
    const bool has_keys = PyTuple_CheckExact(outline.ptr());
    if (has_keys) keys_ = PyTuple_GET_ITEM(outline.ptr(), 1);
    PyObject* const nesting = has_keys ? PyTuple_GET_ITEM(outline.ptr(), 0) : outline.ptr();
    outline_ = {PyBytes_AS_STRING(nesting), static_cast<std::size_t>(PyBytes_GET_SIZE(nesting))};
  }

  py::object build() {
    const char kind = outline_.front();
    outline_.remove_prefix(1);
    switch (kind) {
      case 'T':
        return next_tensor_();
      case '*':
        return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(PyList_GET_ITEM(frozen_.ptr(), next_frozen_++), 1));
      case '(':
        return all_of(PyTuple_New, PyTuple_SetItem);
      case '[':
        return all_of(PyList_New, PyList_SetItem);
      default:
        return dict();
    }
  }

 private:
  Py_ssize_t size() {
    Py_ssize_t size = 0;
    const auto [end, error] = std::from_chars(outline_.begin(), outline_.end(), size);
    outline_.remove_prefix(static_cast<std::size_t>(end - outline_.begin()));
    return size;
  }

  py::object all_of(PyObject* (*make)(Py_ssize_t), int (*set)(PyObject*, Py_ssize_t, PyObject*)) {
    const Py_ssize_t count = size();
    auto result = py::reinterpret_steal<py::object>(make(count));
    if (!result) throw py::error_already_set();
    for (Py_ssize_t i = 0; i < count; ++i) set(result.ptr(), i, build().release().ptr());
    return result;
  }

  py::object dict() {
    py::object result = py::dict();
    for (Py_ssize_t left = size(); left > 0; --left) {
      PyObject* const key = PyTuple_GET_ITEM(keys_, next_key_++);
      if (PyDict_SetItem(result.ptr(), key, build().ptr()) != 0) throw py::error_already_set();
    }
    return result;
  }

  std::string_view outline_;
  PyObject* keys_ = nullptr;
  py::handle frozen_;
  NextTensor next_tensor_;
  Py_ssize_t next_key_ = 0;
  Py_ssize_t next_frozen_ = 0;
};

py::object take_plain_apart(const py::object& tree) {
  PlainTree plain;
  if (!plain.take_apart(tree.ptr())) return py::none();
  py::list leaves(plain.leaves.size());
  for (std::size_t i = 0; i < plain.leaves.size(); ++i) {
    PyList_SET_ITEM(leaves.ptr(), static_cast<Py_ssize_t>(i), py::handle(plain.leaves[i]).inc_ref().ptr());
  }
  py::object outline = py::bytes(plain.outline);
  if (!plain.keys.empty()) {
    py::tuple keys(plain.keys.size());
    for (std::size_t i = 0; i < plain.keys.size(); ++i) {
      PyTuple_SET_ITEM(keys.ptr(), static_cast<Py_ssize_t>(i), py::handle(plain.keys[i]).inc_ref().ptr());
    }
    outline = py::make_tuple(outline, keys);
  }
  return py::make_tuple(leaves, outline);
}

py::object put_sequence_together(const py::object& outline, const py::list& frozen, const py::sequence& tensors) {
  std::size_t next = 0;
  return Builder(outline, frozen, [&] { return py::object(tensors[next++]); }).build();
}

}  // namespace

py::object put_plain_together(const py::handle& outline, const py::handle& frozen,
                              const std::vector<at::Tensor>& tensors) {
  auto next = tensors.begin();
  return Builder(outline, frozen, [&] { return py::reinterpret_steal<py::object>(THPVariable_Wrap(*next++)); }).build();
}

void bind_plain_tree(py::module_& module) {
  module.def(
      "take_plain_apart", &take_plain_apart, py::arg("tree"),
      "Leaves of a tree, in pytree's order, and what is equal for trees of the same structure.\n\nNone: it holds "
      "something else than tuples, lists and dicts (of str and int) of tensors, numbers, strings, bytes and None.");
  module.def("put_plain_together", &put_sequence_together, py::arg("outline"), py::arg("frozen"), py::arg("tensors"),
             "The tree of an outline, with these tensors; `frozen` has the index and the value of each other leaf.");
}

}  // namespace pianola::python
