#include <bindings/host_guard.hpp>

#include <bindings/bindings.hpp>
#include <bindings/fast_method.hpp>
#include <bindings/object_words.hpp>
#include <bindings/same_value.hpp>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace pianola::python {
namespace {

bool is_container(PyObject* object) {
  return PyDict_Check(object) || PyList_Check(object) || PyTuple_Check(object) || PyAnySet_Check(object) ||
         PyType_Check(object) || PyCell_Check(object) || PyModule_Check(object);
}

// A class that says itself when two of its objects are equal does not mean one of them.
bool is_by_value(PyObject* object) {
  return Py_TYPE(object)->tp_richcompare != PyBaseObject_Type.tp_richcompare && !THPVariable_Check(object);
}

}  // namespace

// --- Building ---

HostGuard::Node& HostGuard::node_for(NodeKind kind, const py::object& owner) {
  const auto [known, is_new] = node_of_.try_emplace({kind, owner.ptr()}, nodes_.size());
  if (!is_new) return nodes_[known->second];
  Node node{.kind = kind};
  node.pointer = owner.ptr();
  node.kept = owner;
  const bool is_object =
      kind == NodeKind::object || kind == NodeKind::function || kind == NodeKind::bytes || kind == NodeKind::value;
  if (is_object && can_be_held_weakly(owner.ptr()) && !is_container(owner.ptr())) node.kept = weakly(owner.ptr());
  if (kind == NodeKind::object) {
    node.type = borrowed(reinterpret_cast<PyObject*>(Py_TYPE(owner.ptr())));
    node.is_replaceable = is_by_value(owner.ptr());
  } else {
    node.is_replaceable = kind != NodeKind::type && kind != NodeKind::cell && kind != NodeKind::value;
  }
  nodes_.push_back(std::move(node));
  return nodes_.back();
}

// Of a leaf the flag itself is known, else a tensor is asked. What a tensor has for autograd is made where it is first needed;
// an inference tensor never needs it.
void HostGuard::add_leaf(PyObject* object, const py::object& reference, std::ptrdiff_t place) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  torch::autograd::AutogradMeta* meta = nullptr;
  if (tensor.is_leaf() && !tensor.is_inference()) meta = torch::autograd::impl::materialize_autograd_meta(tensor);
  leaves_.push_back({object, reference, tensor.unsafeGetTensorImpl(), meta, tensor.requires_grad(), place});
}

HostGuard::Expected HostGuard::expect(const py::object& value, std::ptrdiff_t place) {
  Expected expected;
  expected.pointer = value.ptr();
  if (!is_container(value.ptr()) && !is_simple(value.ptr()) && can_be_held_weakly(value.ptr()) &&
      !PyMethod_Check(value.ptr()) && !PyCode_Check(value.ptr())) {
    expected.kept = weakly(value.ptr());
    expected.is_weak = static_cast<bool>(expected.kept);
  }
  if (!expected.is_weak) expected.kept = value;
  if (THPVariable_Check(value.ptr())) add_leaf(value.ptr(), expected.kept, place);
  return expected;
}

void HostGuard::add(const std::string& kind, const py::object& owner, const py::object& key, const py::object& value,
                    const py::object& missing) {
  const std::ptrdiff_t place = places_++;
  const auto expected = [&] { return value.is(missing) ? Expected() : expect(value, place); };
  if (kind == "entry") {
    Expected wanted = expected();
    Node& node = node_for(NodeKind::dict, owner);
    if (!node.is_whole) node.entries.push_back({key, std::move(wanted), place});  // else it is among them
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
    if (node.type) {
      if (const int stop = visit(node.type.ptr(), argument); stop != 0) return stop;
    }
    if (const int stop = all(node.entries); stop != 0) return stop;
    if (const int stop = all(node.slots); stop != 0) return stop;
  }
  return 0;
}

void HostGuard::clear() noexcept {
  is_lined_up_ = false;
  events_.clear();
  leaves_.clear();
  const std::vector<Node> dropped = std::exchange(nodes_, {});
}

namespace {

PyObject* check_of(PyObject* self, PyObject* /*none*/) {
  return call_method<HostGuard>(self, [](HostGuard& guard) { return PyLong_FromSsize_t(guard.check()); });
}

PyMethodDef check_method = {
    "check", &check_of, METH_NOARGS,
    "check(self: pianola._C.HostGuard) -> int\n\nThe number of the first place that is not as it was; -1 if all are."};

void show_to_collector(PyHeapTypeObject* heap_type) {
  PyTypeObject& type = heap_type->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    const HostGuard* const guard = held_by<HostGuard>(self);
    return guard == nullptr ? 0 : guard->traverse(visit, arg);
  };
  type.tp_clear = [](PyObject* self) {
    if (HostGuard* const guard = held_by<HostGuard>(self); guard != nullptr) guard->clear();
    return 0;
  };
}

}  // namespace

void bind_host_guard(py::module_& module) {
  py::class_<HostGuard> guard(module, "HostGuard", "What a call read on the host, as it was.",
                              py::custom_type_setup(&show_to_collector));
  guard.def(py::init<>())
      .def("add", &HostGuard::add, py::arg("kind"), py::arg("owner"), py::arg("key"), py::arg("value"),
           py::arg("missing"), "A place and what has to be there; places are numbered as they are added.")
      .def("seal", &HostGuard::seal, "After the last add().");
  add_method(guard, check_method);
}

}  // namespace pianola::python
