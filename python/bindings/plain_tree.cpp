#include <bindings/bindings.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::python {
namespace {

constexpr int kDeepest = 64;  // beyond it, and where a container holds itself, pytree has the word

// Types that are exactly these: one derived from them may be a named tuple, or be registered with pytree.
bool is_plain_leaf(const py::handle& value) {
  PyObject* const object = value.ptr();
  return THPVariable_CheckExact(object) || object == Py_None || PyLong_CheckExact(object) || PyBool_Check(object) ||
         PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) || PyComplex_CheckExact(object) ||
         PyBytes_CheckExact(object);
}

// Of types whose values are equal only to their own: 1, 1.0 and True are one key to a dict that remembers structures.
bool is_plain_key(const py::handle& key) { return PyUnicode_CheckExact(key.ptr()) || PyLong_CheckExact(key.ptr()); }

// Takes apart a tree of tuples, lists and dicts in the order of pytree, and writes down their nesting, and where tensors are.
class PlainTree {
 public:
  // False: it holds something else.
  bool take_apart(const py::handle& tree, int depth = 0) {
    if (is_plain_leaf(tree)) {
      leaves_.append(tree);
      outline_ += THPVariable_CheckExact(tree.ptr()) ? 'T' : '*';
      return true;
    }
    if (depth == kDeepest) return false;
    if (PyTuple_CheckExact(tree.ptr())) return take_all(py::reinterpret_borrow<py::tuple>(tree), '(', depth);
    if (PyList_CheckExact(tree.ptr())) return take_all(py::reinterpret_borrow<py::list>(tree), '[', depth);
    if (!PyDict_CheckExact(tree.ptr())) return false;
    const auto dict = py::reinterpret_borrow<py::dict>(tree);
    open('{', dict.size());
    for (const auto& [key, value] : dict) {
      keys_.push_back(py::reinterpret_borrow<py::object>(key));
      if (!is_plain_key(key) || !take_apart(value, depth + 1)) return false;
    }
    return true;
  }

  // The leaves, and what is equal where the nesting, the keys and the places of tensors are.
  [[nodiscard]] py::tuple result() const {
    py::object outline = py::bytes(outline_);
    if (!keys_.empty()) outline = py::make_tuple(outline, py::tuple(py::cast(keys_)));
    return py::make_tuple(leaves_, outline);
  }

 private:
  template <class Sequence>
  bool take_all(const Sequence& values, char kind, int depth) {
    open(kind, values.size());
    for (const py::handle value : values) {
      if (!take_apart(value, depth + 1)) return false;
    }
    return true;
  }

  void open(char kind, std::size_t size) {
    outline_ += kind;
    outline_ += std::to_string(size);
  }

  py::list leaves_;
  std::string outline_;
  std::vector<py::object> keys_;
};

py::object take_plain_apart(const py::object& tree) {
  PlainTree plain;
  return plain.take_apart(tree) ? py::object(plain.result()) : py::none();
}

}  // namespace

void bind_plain_tree(py::module_& module) {
  module.def(
      "take_plain_apart", &take_plain_apart, py::arg("tree"),
      "Leaves of a tree, in pytree's order, and what is equal for trees of the same structure.\n\nNone: it holds "
      "something else than tuples, lists and dicts (of str and int) of tensors, numbers, strings, bytes and None.");
}

}  // namespace pianola::python
