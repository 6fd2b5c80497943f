#pragma once
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace pianola::python {

/// A tree of tuples, lists and dicts (of str and int), taken apart in the order of pytree. Its leaves are tensors, numbers,
/// strings, bytes and None; of exactly these types, since others may be named tuples, or registered with pytree. Arguments may be
/// objects as well, see is_opaque_object().
///
/// References:  borrowed from the tree, which has to stay as it is meanwhile.
/// Threads:     With the GIL.
struct PlainTree {
  std::string outline = {};  ///< The nesting, and where tensors are.
  c10::SmallVector<PyObject*, 8> keys = {};
  c10::SmallVector<PyObject*, 16> leaves = {};

  /// False: it holds something else.
  [[nodiscard]] bool take_apart(PyObject* tree, int depth = 0);
  /// As of the tree (args, kwargs), with the keyword arguments in the order of their names. Opaque objects are leaves.
  [[nodiscard]] bool take_arguments_apart(PyObject* args, PyObject* kwargs);
  [[nodiscard]] std::vector<at::Tensor> tensors() const;

 private:
  bool takes_objects_ = false;
  void open(char kind, Py_ssize_t size);
  [[nodiscard]] bool take_entry(PyObject* key, PyObject* value, int depth);
  [[nodiscard]] bool take_object(PyObject* object);
};

/// Whether it is a leaf to pytree, and only itself to a graph: a module, an optimizer, any object with attributes that is neither a
/// container nor a tensor, nor a dataclass, whose fields are taken apart.
[[nodiscard]] bool is_opaque_object(PyObject* object);

/// The tree that was taken apart, with these tensors.
/// @param outline  As take_plain_apart() gives it.
/// @param frozen   (index, leaf) of each leaf that is no tensor, in order.
py::object put_plain_together(const py::handle& outline, const py::handle& frozen,
                              const std::vector<at::Tensor>& tensors);

}  // namespace pianola::python
