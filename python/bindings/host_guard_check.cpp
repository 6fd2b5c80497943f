#include <bindings/gil.hpp>
#include <bindings/host_guard.hpp>
#include <bindings/object_words.hpp>
#include <bindings/same_value.hpp>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

namespace pianola::python {
namespace {

constexpr std::ptrdiff_t kNone = -1;
constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::microseconds(50);

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

// A look inside a look, and one that has waited too long, find a difference: that is never wrong.
std::ptrdiff_t HostGuard::check() {
  const unsigned long thread = PyThread_get_thread_ident();
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (looking_ != 0) {
    if (looking_ == thread || std::chrono::steady_clock::now() > give_up) return 0;
    const WithoutGil others_run;
    std::this_thread::sleep_for(kPause);
  }
  looking_ = thread;
  const std::unique_ptr<unsigned long, void (*)(unsigned long*)> over(&looking_, [](unsigned long* one) { *one = 0; });
  return check_rows();
}

std::ptrdiff_t HostGuard::check_rows() {
  if (!is_lined_up_) return check_all();
  const auto look = [&](Versioned& one) {
    const std::ptrdiff_t place = difference(nodes_[one.node]);
    one.version = nodes_[one.node].version;
    return place;
  };
  for (Versioned& one : dicts_) {
    if (one.version == version_of_dict(one.object)) [[likely]]
      continue;
    if (const std::ptrdiff_t place = look(one); place != kNone) return place;
    if (!is_lined_up_) return check_all();
  }
  for (Instance& one : instances_) {
    if (is_as_it_was(one)) [[likely]]
      continue;
    if (const std::ptrdiff_t place = difference(nodes_[one.node]); place != kNone) return place;
    if (!is_lined_up_) return check_all();
    one.version = nodes_[one.node].version;
  }
  for (Versioned& one : types_) {
    if (one.version != 0 && one.version == version_of_type(one.object)) [[likely]]
      continue;
    if (const std::ptrdiff_t place = look(one); place != kNone) return place;
    if (!is_lined_up_) return check_all();
  }
  for (const std::size_t index : others_) {
    if (is_as_it_was(nodes_[index])) continue;
    if (const std::ptrdiff_t place = difference(nodes_[index]); place != kNone) return place;
    if (!is_lined_up_) return check_all();
  }
  return check_leaves();
}

std::ptrdiff_t HostGuard::check_all() {
  for (Node& node : nodes_) {
    if (is_as_it_was(node)) continue;
    const std::ptrdiff_t place = difference(node);
    if (place != kNone) return place;
  }
  line_up();
  return check_leaves();
}

std::ptrdiff_t HostGuard::check_leaves() const {
  for (const Leaf& leaf : leaves_) {
    if (alive(leaf.reference.ptr()) != leaf.tensor) continue;
    const at::Tensor& tensor = THPVariable_Unpack(leaf.tensor);
    if (tensor.unsafeGetTensorImpl() != leaf.impl) return leaf.place;
    const bool now = leaf.meta != nullptr ? leaf.meta->requires_grad_ : tensor.requires_grad();
    if (now != leaf.requires_grad) return leaf.place;
  }
  return kNone;
}

// All nodes are as they were.
void HostGuard::line_up() {
  dicts_.clear();
  instances_.clear();
  types_.clear();
  others_.clear();
  std::set<PyObject*> in_dicts;  // alive as long as these dictionaries are as they are
  for (const Node& node : nodes_) {
    if (node.kind != NodeKind::dict || version_of_dict(node.pointer) == 0) continue;
    for (const Entry& entry : node.entries) in_dicts.insert(entry.expected.pointer);
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.kind == NodeKind::dict && node.version != 0) {
      dicts_.push_back({node.pointer, node.version, i});
    } else if (node.kind == NodeKind::type && node.version != 0) {
      types_.push_back({node.pointer, node.version, i});
    } else if (PyObject* const object = node.kind == NodeKind::object ? held(node) : nullptr;
               object != nullptr && node.slots.empty() && node.version != 0) {
      const bool is_weak = PyWeakref_CheckRefExact(node.kept.ptr()) != 0 && in_dicts.count(object) == 0;
      instances_.push_back(
          {object, node.type, _PyObject_GetDictPtr(object), is_weak ? node.kept.ptr() : nullptr, node.version, i});
    } else if (node.kind != NodeKind::tuple) {
      others_.push_back(i);
    }
  }
  is_lined_up_ = true;
}

bool HostGuard::is_as_it_was(const Instance& one) {
  if (one.reference != nullptr && alive(one.reference) != one.object) return false;
  if (reinterpret_cast<PyObject*>(Py_TYPE(one.object)) != one.type) return false;
  return one.dict != nullptr && *one.dict != nullptr && one.version == version_of_dict(*one.dict);
}

// Null where it has died. Then nobody can read it any more: whoever led to it leads to something else now, which its own
// place tells.
PyObject* HostGuard::held(const Node& node) {
  return PyWeakref_CheckRefExact(node.kept.ptr()) != 0 ? alive(node.kept.ptr()) : node.pointer;
}

// By words alone; false: it takes a closer look.
bool HostGuard::is_as_it_was(const Node& node) {
  switch (node.kind) {
    case NodeKind::dict:
      return node.version != 0 && node.version == version_of_dict(node.pointer);
    case NodeKind::object: {
      if (!node.slots.empty() || node.version == 0) return false;
      PyObject* const object = held(node);
      if (object == nullptr) return true;
      if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type) return false;
      PyObject* const dict = dict_of(object);
      return dict != nullptr && node.version == version_of_dict(dict);
    }
    case NodeKind::type:
      return node.version != 0 && node.version == version_of_type(node.pointer);
    case NodeKind::cell:
      return PyCell_GET(node.pointer) == node.entries.front().expected.pointer &&
             node.entries.front().expected.kept.ptr() != nullptr && !node.entries.front().expected.is_weak;
    case NodeKind::tuple:
      return true;
    case NodeKind::list:
    case NodeKind::iterable:
    case NodeKind::function:
    case NodeKind::bytes:
    case NodeKind::value:
      return false;
  }
  return false;
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
    case NodeKind::list: {
      if (PyList_GET_SIZE(node.pointer) != static_cast<Py_ssize_t>(node.entries.size())) return node.place;
      for (std::size_t i = 0; i < node.entries.size(); ++i) {
        PyObject* const now = PyList_GET_ITEM(node.pointer, static_cast<Py_ssize_t>(i));
        if (!matches(node.entries[i].expected, now)) return node.place;
      }
      return kNone;
    }
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

std::ptrdiff_t HostGuard::difference_in_dict(Node& node, PyObject* dict) {
  const std::uint64_t version = version_of_dict(dict);
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
  if (object == nullptr) return kNone;
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type) return any;
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
  if (function == nullptr) return kNone;
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
  bool same = false;
  if (node.kind == NodeKind::tuple) {
    same = PyTuple_GET_SIZE(now) == static_cast<Py_ssize_t>(node.entries.size());
    for (std::size_t i = 0; same && i < node.entries.size(); ++i) {
      same = matches(node.entries[i].expected, PyTuple_GET_ITEM(now, static_cast<Py_ssize_t>(i)));
    }
  } else {
    same = difference(node) == kNone;
  }
  if (!same) node = before;
  return same;
}

}  // namespace pianola::python
