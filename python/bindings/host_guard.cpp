#include <bindings/host_guard.hpp>

#include <bindings/bindings.hpp>
#include <bindings/same_value.hpp>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace pianola::python {
namespace {

constexpr std::ptrdiff_t kNone = -1;

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// The interpreter gives each dictionary another number whenever it changes, and never the same to two of them.
#if PY_VERSION_HEX < 0x030E0000
std::uint64_t version_of_dict(PyObject* dict) {
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
std::uint64_t version_of_dict(PyObject*) { return 0; }
#endif

// 0: it has none at the moment.
std::uint64_t version_of_type(PyObject* object) {
  const auto* const type = reinterpret_cast<PyTypeObject*>(object);
#ifdef Py_TPFLAGS_VALID_VERSION_TAG
  if (PyType_HasFeature(reinterpret_cast<PyTypeObject*>(object), Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

// Borrowed; null where it is dead.
PyObject* alive(PyObject* reference) {
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
PyObject* dict_of(PyObject* object) {
  PyObject* const dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);
  return dict;
}

bool can_be_held_weakly(PyObject* object) { return PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) != 0; }

py::object weakly(PyObject* object) {
  PyObject* const reference = PyWeakref_NewRef(object, nullptr);
  if (reference == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(reference);
}

bool is_container(PyObject* object) {
  return PyDict_Check(object) || PyList_Check(object) || PyTuple_Check(object) || PyAnySet_Check(object) ||
         PyType_Check(object) || PyCell_Check(object) || PyModule_Check(object);
}

// A class that says itself when two of its objects are equal does not mean one of them.
bool is_by_value(PyObject* object) {
  return Py_TYPE(object)->tp_richcompare != PyBaseObject_Type.tp_richcompare && !THPVariable_Check(object);
}

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

// --- Building ---

HostGuard::Node& HostGuard::node_for(NodeKind kind, const py::object& owner) {
  const auto [known, is_new] = node_of_.try_emplace({kind, owner.ptr()}, nodes_.size());
  if (!is_new) return nodes_[known->second];
  Node node{.kind = kind};
  node.pointer = owner.ptr();
  node.kept = owner;
  const bool is_object = kind == NodeKind::object || kind == NodeKind::function || kind == NodeKind::bytes;
  if (is_object && can_be_held_weakly(owner.ptr()) && !is_container(owner.ptr())) node.kept = weakly(owner.ptr());
  if (kind == NodeKind::object) {
    node.type = reinterpret_cast<PyObject*>(Py_TYPE(owner.ptr()));
    node.is_replaceable = is_by_value(owner.ptr());
  } else {
    node.is_replaceable = kind != NodeKind::type && kind != NodeKind::cell && kind != NodeKind::value;
  }
  nodes_.push_back(std::move(node));
  return nodes_.back();
}

// Of a leaf the flag itself is known, else a tensor is asked.
void HostGuard::add_leaf(PyObject* object, std::ptrdiff_t place) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  torch::autograd::AutogradMeta* meta = nullptr;
  if (tensor.is_leaf()) meta = torch::autograd::impl::get_autograd_meta(tensor);
  leaves_.push_back({object, tensor.unsafeGetTensorImpl(), meta, tensor.requires_grad(), place});
}

HostGuard::Expected HostGuard::expect(const py::object& value, std::ptrdiff_t place) {
  Expected expected;
  expected.pointer = value.ptr();
  if (THPVariable_Check(value.ptr())) add_leaf(value.ptr(), place);
  if (!is_container(value.ptr()) && !is_simple(value.ptr()) && can_be_held_weakly(value.ptr()) &&
      !PyMethod_Check(value.ptr())) {
    expected.kept = weakly(value.ptr());
    expected.is_weak = static_cast<bool>(expected.kept);
  }
  if (!expected.is_weak) expected.kept = value;
  return expected;
}

void HostGuard::add(const std::string& kind, const py::object& owner, const py::object& key, const py::object& value,
                    const py::object& missing) {
  const std::ptrdiff_t place = places_++;
  const auto expected = [&] { return value.is(missing) ? Expected() : expect(value, place); };
  if (kind == "entry") {
    node_for(NodeKind::dict, owner).entries.push_back({key, expected(), place});
  } else if (kind == "attribute") {
    Expected wanted = expected();
    node_for(NodeKind::object, owner).entries.push_back({key, std::move(wanted), place});
  } else if (kind == "slot") {
    Expected wanted = expected();
    node_for(NodeKind::object, owner).slots.push_back({key, std::move(wanted), place});
  } else if (kind == "class") {
    Expected wanted = expected();
    node_for(NodeKind::type, owner).entries.push_back({key, std::move(wanted), place});
  } else if (kind == "cell") {
    Expected wanted = expected();
    node_for(NodeKind::cell, owner).entries.push_back({key, std::move(wanted), place});
  } else if (kind == "contents") {
    add_contents(owner, value.cast<py::tuple>(), place);
  } else if (kind == "function") {
    for (const py::handle part : value.cast<py::tuple>()) {
      Expected wanted = expect(borrowed(part.ptr()), place);
      node_for(NodeKind::function, owner).entries.push_back({py::none(), std::move(wanted), place});
    }
  } else {
    const NodeKind node = kind == "bytes" ? NodeKind::bytes : NodeKind::value;
    Expected wanted = expect(value, place);
    node_for(node, owner).entries.push_back({key, std::move(wanted), place});
  }
}

void HostGuard::add_contents(const py::object& owner, const py::tuple& entries, std::ptrdiff_t place) {
  const bool is_dict = PyDict_Check(owner.ptr());
  const NodeKind kind = is_dict                      ? NodeKind::dict
                        : PyList_Check(owner.ptr())  ? NodeKind::list
                        : PyTuple_Check(owner.ptr()) ? NodeKind::tuple
                                                     : NodeKind::iterable;
  std::vector<Entry> whole;
  for (const py::handle one : entries) {
    if (is_dict) {
      const auto pair = py::reinterpret_borrow<py::tuple>(one);
      whole.push_back({pair[0], expect(pair[1], place), place});
    } else {
      whole.push_back({py::none(), expect(borrowed(one.ptr()), place), place});
    }
  }
  Node& node = node_for(kind, owner);
  node.is_whole = true;
  node.place = place;
  node.entries = std::move(whole);  // single entries of a dict are among them
}

// Values that are watched themselves are linked with their nodes, and nothing is known of versions yet.
void HostGuard::seal() {
  std::map<PyObject*, std::ptrdiff_t> watched;
  for (const auto& [key, index] : node_of_) {
    if (nodes_[index].is_replaceable) watched.emplace(key.second, static_cast<std::ptrdiff_t>(index));
  }
  std::map<std::ptrdiff_t, int> links;
  const auto link = [&](Entry& entry) {
    const auto found = watched.find(entry.expected.pointer);
    if (found == watched.end()) return;
    entry.expected.node = found->second;
    ++links[found->second];
    if (!entry.expected.is_weak && is_container(entry.expected.pointer)) entry.expected.kept = {};
  };
  for (Node& node : nodes_) {
    std::for_each(node.entries.begin(), node.entries.end(), link);
    std::for_each(node.slots.begin(), node.slots.end(), link);
  }
  // What two places lead to stays the one that it was: to watch another one in its place would be to watch one of two.
  for (const auto& [index, count] : links) {
    if (count > 1) nodes_[static_cast<std::size_t>(index)].is_replaceable = false;
  }
  node_of_.clear();
  const auto by_tensor = [](const Leaf& one, const Leaf& other) { return one.tensor < other.tensor; };
  std::sort(leaves_.begin(), leaves_.end(), by_tensor);
  const auto is_same = [](const Leaf& one, const Leaf& other) { return one.tensor == other.tensor; };
  leaves_.erase(std::unique(leaves_.begin(), leaves_.end(), is_same), leaves_.end());
}

// --- Comparing ---

std::ptrdiff_t HostGuard::check() {
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
      Entry& entry = node.entries.front();
      return same_value(entry.expected.kept.ptr(), result_of(entry.key, array).ptr()) ? kNone : entry.place;
    }
    case NodeKind::value: {
      Entry& entry = node.entries.front();
      return same_value(entry.expected.kept.ptr(), result_of(entry.key, nullptr).ptr()) ? kNone : entry.place;
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

// --- What the collector of cycles sees ---

int HostGuard::traverse(visitproc visit, void* argument) const {
  const auto all = [&](const std::vector<Entry>& entries) {
    for (const Entry& entry : entries) {
      if (entry.key) {
        if (const int stop = visit(entry.key.ptr(), argument); stop != 0) return stop;
      }
      if (!entry.expected.kept) continue;
      if (const int stop = visit(entry.expected.kept.ptr(), argument); stop != 0) return stop;
    }
    return 0;
  };
  for (const Node& node : nodes_) {
    if (node.kept) {
      if (const int stop = visit(node.kept.ptr(), argument); stop != 0) return stop;
    }
    if (const int stop = all(node.entries); stop != 0) return stop;
    if (const int stop = all(node.slots); stop != 0) return stop;
  }
  return 0;
}

void HostGuard::clear() noexcept {
  is_lined_up_ = false;
  leaves_.clear();
  const std::vector<Node> dropped = std::exchange(nodes_, {});
}

namespace {

// Null before it is made.
HostGuard* guard_in(PyObject* self) {
  const auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  return instance->simple_layout ? static_cast<HostGuard*>(instance->simple_value_holder[0]) : nullptr;
}

void show_to_collector(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const HostGuard* const guard = guard_in(self);
    return guard == nullptr ? 0 : guard->traverse(visit, arg);
  };
  type.tp_clear = [](PyObject* self) {
    if (HostGuard* const guard = guard_in(self); guard != nullptr) guard->clear();
    return 0;
  };
}

}  // namespace

void bind_host_guard(py::module_& module) {
  py::class_<HostGuard>(module, "HostGuard", "What a call read on the host, as it was.",
                        py::custom_type_setup(&show_to_collector))
      .def(py::init<>())
      .def("add", &HostGuard::add, py::arg("kind"), py::arg("owner"), py::arg("key"), py::arg("value"),
           py::arg("missing"))
      .def("seal", &HostGuard::seal)
      .def("check", &HostGuard::check);
}

}  // namespace pianola::python
