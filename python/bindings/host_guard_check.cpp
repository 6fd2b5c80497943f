#include <bindings/host_guard.hpp>
#include <bindings/object_words.hpp>
#include <bindings/same_value.hpp>

#include <array>

namespace pianola::python {
namespace {

constexpr std::ptrdiff_t kNone = -1;

PyObject* slot_of(PyObject* object, PyObject* name, py::object& keep) {
  PyObject* const value = PyObject_GenericGetAttr(object, name);
  if (value == nullptr) PyErr_Clear();
  keep = py::reinterpret_steal<py::object>(value);
  return value;
}

// None where it raises.
py::object result_of(const py::object& function, PyObject* argument) {
  PyObject* const result = PyObject_CallFunctionObjArgs(function.ptr(), argument, nullptr);
  if (result == nullptr) PyErr_Clear();
  return result == nullptr ? py::none() : py::reinterpret_steal<py::object>(result);
}

std::array<PyObject*, 4> parts_of(PyObject* function) {
  std::array<PyObject*, 4> parts = {PyFunction_GET_CODE(function), PyFunction_GET_DEFAULTS(function),
                                    PyFunction_GET_KW_DEFAULTS(function), PyFunction_GET_CLOSURE(function)};
  for (PyObject*& part : parts) part = part == nullptr ? Py_None : part;
  return parts;
}

}  // namespace

// Null where it has died. Then nobody can read it any more: whoever led to it leads to something else now, which its own
// place tells.
PyObject* HostGuard::held(const Node& node) {
  return PyWeakref_CheckRefExact(node.kept.ptr()) != 0 ? alive(node.kept.ptr()) : node.pointer;
}

// By words alone; false: it takes a closer look.
bool HostGuard::is_as_it_was(std::size_t row) const {
  const Node& node = nodes_[row];
  const bool is_quiet = events_.is_quiet(row);
  switch (node.kind) {
    case NodeKind::dict:
      return is_quiet || (node.version != 0 && node.version == version_of_dict(node.pointer));
    case NodeKind::object: {
      if (!node.slots.empty() || (!is_quiet && node.version == 0)) return false;
      PyObject* const object = held(node);
      if (object == nullptr) return true;
      if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type.ptr()) return false;
      PyObject* const dict = dict_of(object);
      return dict != nullptr && (is_quiet ? dict == events_.followed(row) : node.version == version_of_dict(dict));
    }
    case NodeKind::type:
      return node.version != 0 && node.version == version_of_type(node.pointer);
    case NodeKind::cell:
      return PyCell_GET(node.pointer) == node.entries.front().expected.pointer &&
             node.entries.front().expected.kept.ptr() != nullptr && !node.entries.front().expected.is_weak;
    case NodeKind::tuple:
      return true;
    case NodeKind::function:
      return is_quiet;
    case NodeKind::list:
    case NodeKind::iterable:
    case NodeKind::bytes:
    case NodeKind::value:
      return false;
  }
  return false;
}

// What differs is looked at again by the next call.
std::ptrdiff_t HostGuard::look(std::size_t row) {
  const std::ptrdiff_t place = difference(nodes_[row]);
  if (place != kNone && events_.followed(row) != nullptr) events_.note(row, false);
  return place;
}

std::ptrdiff_t HostGuard::difference(Node& node) {
  switch (node.kind) {
    case NodeKind::dict:
      return difference_in_dict(node, node.pointer);
    case NodeKind::object:
      return difference_in_object(node);
    case NodeKind::type: {
      auto* const type = reinterpret_cast<PyTypeObject*>(node.pointer);
      for (Entry& entry : node.entries) {
        if (!matches(entry.expected, _PyType_Lookup(type, entry.key.ptr()))) return entry.place;
      }
      node.version = version_of_type(node.pointer);
      return kNone;
    }
    case NodeKind::cell: {
      Entry& entry = node.entries.front();
      return matches(entry.expected, PyCell_GET(node.pointer)) ? kNone : entry.place;
    }
    case NodeKind::list:
      return difference_in_list(node);
    case NodeKind::tuple:
      return kNone;
    case NodeKind::iterable:
      return difference_in_iterable(node);
    case NodeKind::function:
      return difference_in_function(node);
    case NodeKind::bytes: {
      PyObject* const array = held(node);
      if (array == nullptr) return kNone;
      const py::object keep = borrowed(array);
      Entry& entry = node.entries.front();
      return matches(entry.expected, result_of(entry.key, array).ptr()) ? kNone : entry.place;
    }
    case NodeKind::value: {
      if (held(node) == nullptr) return kNone;
      for (Entry& entry : node.entries) {
        if (!matches(entry.expected, result_of(entry.key, nullptr).ptr())) return entry.place;
      }
      return kNone;
    }
  }
  return kNone;
}

// It is followed from before it is compared: what changes it meanwhile is told.
std::ptrdiff_t HostGuard::difference_in_dict(Node& node, PyObject* dict) {
  const std::uint64_t version = events_.follow(row_of(node), dict) ? 0 : version_of_dict(dict);
  if (node.is_whole) {
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    auto entry = node.entries.begin();
    while (PyDict_Next(dict, &at, &key, &value) != 0) {
      if (entry == node.entries.end() || !same_value(entry->key.ptr(), key)) return node.place;
      if (!matches(entry->expected, value)) return node.place;
      ++entry;
    }
    if (entry != node.entries.end()) return node.place;
  } else {
    for (Entry& entry : node.entries) {
      PyObject* const now = PyDict_GetItemWithError(dict, entry.key.ptr());
      if (now == nullptr) PyErr_Clear();
      if (!matches(entry.expected, now)) return entry.place;
    }
  }
  node.version = version;
  return kNone;
}

std::ptrdiff_t HostGuard::difference_in_object(Node& node) {
  const std::ptrdiff_t any = node.entries.empty() ? node.slots.front().place : node.entries.front().place;
  PyObject* const object = held(node);
  if (object == nullptr) {
    events_.stop(row_of(node));
    return kNone;
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type.ptr()) return any;
  if (!node.entries.empty()) {
    PyObject* const dict = dict_of(object);
    if (dict == nullptr) return any;
    const std::ptrdiff_t place = difference_in_dict(node, dict);
    if (place != kNone) return place;
  }
  for (Entry& slot : node.slots) {
    py::object keep;
    if (!matches(slot.expected, slot_of(object, slot.key.ptr(), keep))) return slot.place;
  }
  return kNone;
}

std::ptrdiff_t HostGuard::difference_in_list(Node& node) {
  if (PyList_GET_SIZE(node.pointer) != static_cast<Py_ssize_t>(node.entries.size())) return node.place;
  for (std::size_t i = 0; i < node.entries.size(); ++i) {
    PyObject* const now = PyList_GET_ITEM(node.pointer, static_cast<Py_ssize_t>(i));
    if (!matches(node.entries[i].expected, now)) return node.place;
  }
  return kNone;
}

// Containers whose inside the interpreter does not show: sets, deques.
std::ptrdiff_t HostGuard::difference_in_iterable(Node& node) {
  const auto iterator = py::reinterpret_steal<py::object>(PyObject_GetIter(node.pointer));
  auto entry = node.entries.begin();
  while (iterator) {
    const auto value = py::reinterpret_steal<py::object>(PyIter_Next(iterator.ptr()));
    if (!value) break;
    if (entry == node.entries.end() || !matches(entry->expected, value.ptr())) return node.place;
    ++entry;
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return iterator && entry == node.entries.end() ? kNone : node.place;
}

std::ptrdiff_t HostGuard::difference_in_function(Node& node) {
  PyObject* const function = held(node);
  if (function == nullptr) {
    events_.stop(row_of(node));
    return kNone;
  }
  if (PyFunction_Check(function)) events_.follow(row_of(node), function);
  const std::array<PyObject*, 4> parts = parts_of(function);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!matches(node.entries[i].expected, parts[i])) return node.entries[i].place;
  }
  return kNone;
}

bool HostGuard::matches(Expected& expected, PyObject* now) {
  if (now == nullptr || expected.pointer == nullptr) return now == expected.pointer;
  const bool is_watched = expected.node == kNone || nodes_[static_cast<std::size_t>(expected.node)].pointer == now;
  if (now == expected.pointer && is_watched) {
    return !expected.is_weak || alive(expected.kept.ptr()) == now;  // not another one in its memory
  }
  if (expected.node != kNone) {
    if (!takes_its_place(nodes_[static_cast<std::size_t>(expected.node)], now)) return false;
    expected.pointer = now;
    if (expected.is_weak) expected.kept = weakly(now);
    return true;
  }
  if (expected.is_weak) {
    PyObject* const before = alive(expected.kept.ptr());
    return before != nullptr && PyFunction_Check(before) && same_value(before, now);
  }
  if (!expected.kept || !same_value(expected.kept.ptr(), now)) return false;
  expected.pointer = now;
  expected.kept = borrowed(now);
  return true;
}

// Whether another container or object is, for all that was read of it, what the watched one was; then it is watched.
bool HostGuard::takes_its_place(Node& node, PyObject* now) {
  if (!node.is_replaceable || Py_TYPE(now) != Py_TYPE(node.pointer)) return now == node.pointer;
  is_lined_up_ = false;
  const Node before = node;
  const bool weakly_held = PyWeakref_CheckRefExact(node.kept.ptr()) != 0;
  node.pointer = now;
  node.kept = weakly_held ? weakly(now) : borrowed(now);
  node.version = 0;
  events_.stop(row_of(node));
  bool same = false;
  if (node.kind == NodeKind::tuple) {
    same = PyTuple_GET_SIZE(now) == static_cast<Py_ssize_t>(node.entries.size());
    for (std::size_t i = 0; same && i < node.entries.size(); ++i) {
      same = matches(node.entries[i].expected, PyTuple_GET_ITEM(now, static_cast<Py_ssize_t>(i)));
    }
  } else {
    same = difference(node) == kNone;
  }
  if (same) return true;
  node = before;
  events_.stop(row_of(node));  // nothing is known of it until it is looked at
  return false;
}

}  // namespace pianola::python
