#include <bindings/known_call.hpp>

#include <bindings/fast_method.hpp>
#include <bindings/host_guard.hpp>
#include <bindings/object_words.hpp>
#include <bindings/same_value.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

namespace pianola::python {

py::object attribute(const py::handle& object, PyObject* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name));
  if (!value) throw py::error_already_set();
  return value;
}

PyObject* KnownCall::Frozen::get() const { return is_weak ? alive(value.ptr()) : value.ptr(); }

KnownCall::KnownCall(const PlainTree& arguments, const py::object& state, std::int64_t number,
                     std::vector<std::size_t> followed)
    : followed_(std::move(followed)), outline_(arguments.outline), state_(py::weakref(state)), number_(number) {
  for (PyObject* const key : arguments.keys) keys_.push_back(borrowed(key));
  for (PyObject* const leaf : arguments.leaves) {
    if (THPVariable_CheckExact(leaf)) continue;
    const bool is_weak = is_opaque_object(leaf);
    frozen_.push_back({is_weak ? py::object(py::weakref(leaf)) : borrowed(leaf), is_weak});
  }
}

bool KnownCall::has(const PlainTree& arguments) const {
  if (arguments.outline != outline_) return false;  // else there are as many keys, and as many leaves of a kind
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (!same_value(keys_[i].ptr(), arguments.keys[i])) return false;
  }
  auto frozen = frozen_.begin();
  auto followed = followed_.begin();
  return frozen_.empty() || std::all_of(arguments.leaves.begin(), arguments.leaves.end(), [&](PyObject* leaf) {
           if (THPVariable_CheckExact(leaf)) return true;
           const Frozen& known = *frozen++;
           PyObject* const value = known.get();
           if (known.is_weak) return value == leaf;
           const auto index = static_cast<std::size_t>(frozen - frozen_.begin()) - 1;
           if (followed == followed_.end() || *followed != index) return same_value(value, leaf);
           ++followed;
           return Py_TYPE(value) == Py_TYPE(leaf);
         });
}

py::tuple KnownCall::numbers_in(const PlainTree& arguments) const {
  py::tuple numbers(followed_.size());
  std::size_t index = 0, taken = 0;
  for (PyObject* const leaf : arguments.leaves) {
    if (THPVariable_CheckExact(leaf)) continue;
    if (taken < followed_.size() && followed_[taken] == index) numbers[taken++] = borrowed(leaf);
    ++index;
  }
  return numbers;
}

py::object KnownCall::state_now(const py::tuple& numbers, py::object& values) const {
  static PyObject* const guarded_name = interned("guarded");
  static PyObject* const path_name = interned("path");
  PyObject* const state = alive(state_.ptr());
  if (state == nullptr) return {};
  py::object kept = borrowed(state);
  if (!followed_.empty()) {
    const py::object path = attribute(kept, path_name);
    values = py::reinterpret_steal<py::object>(PyObject_CallObject(path.ptr(), numbers.ptr()));
    if (!values) PyErr_Clear();  // as the function will: its calculation divides by zero
    if (!values || values.is_none()) return {};
  }
  const py::object guarded = attribute(kept, guarded_name);  // a guard, or None, and its places
  PyObject* const guard = PyTuple_GET_ITEM(guarded.ptr(), 0);
  if (guard == Py_None || held_by<HostGuard>(guard)->check() >= 0) return {};
  return kept;
}

}  // namespace pianola::python
