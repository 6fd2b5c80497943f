#include <bindings/gil.hpp>
#include <bindings/host_guard.hpp>
#include <bindings/object_words.hpp>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace pianola::python {
namespace {

constexpr std::ptrdiff_t kNone = -1;
constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::microseconds(50);

const void* word_at(const void* address) {
  const void* word = nullptr;
  std::memcpy(&word, address, sizeof(word));
  return word;
}

}  // namespace

// --- A look ---

// A look inside a look, and one that has waited too long, find a difference: that is never wrong.
std::ptrdiff_t HostGuard::check() {
  const unsigned long thread = PyThread_get_thread_ident();
  if (looking_ != 0) {
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (looking_ != 0) {
      if (looking_ == thread || std::chrono::steady_clock::now() > give_up) return 0;
      const WithoutGil others_run;
      std::this_thread::sleep_for(kPause);
    }
  }
  looking_ = thread;
  const std::unique_ptr<unsigned long, void (*)(unsigned long*)> over(&looking_, [](unsigned long* one) { *one = 0; });
  return check_rows();
}

// Each of these looks may find that the rows are no longer those of the nodes: then all nodes are looked at.
std::ptrdiff_t HostGuard::check_rows() {
  if (is_lined_up_ && events_.any()) {
    if (const std::ptrdiff_t place = check_changed(); place != kNone) return place;
    if (events_.any()) is_lined_up_ = false;  // changed while they were compared
  }
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_versions<&version_of_dict>(dicts_); place != kNone) return place;
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_versions<&version_of_type>(types_); place != kNone) return place;
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_words(); place != kNone) return place;
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_versions<&version_of_dict>(dicts_of_objects_); place != kNone) return place;
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_lists(); place != kNone) return place;
  if (!is_lined_up_) return check_all();
  if (const std::ptrdiff_t place = check_living_leaves(); place != kNone) return place;
  for (const std::size_t row : others_) {
    if (is_as_it_was(row)) continue;
    if (const std::ptrdiff_t place = look(row); place != kNone) return place;
    if (!is_lined_up_) return check_all();
  }
  return kNone;
}

std::ptrdiff_t HostGuard::check_all() {
  if (nodes_.empty() && places_ != 0) return 0;  // cleared: the collector found it
  events_.reserve(nodes_.size());
  for (std::size_t row = 0; row < nodes_.size(); ++row) {
    if (is_as_it_was(row)) continue;
    if (const std::ptrdiff_t place = look(row); place != kNone) return place;
  }
  line_up();
  return place_of_leaf();
}

std::ptrdiff_t HostGuard::check_changed() {
  for (const std::size_t row : events_.take()) {
    if (!events_.has_changed(row)) continue;
    const std::ptrdiff_t place = look(row);
    if (place != kNone) {
      events_.list();  // with those that were not looked at
      return place;
    }
    if (!events_.is_quiet(row)) is_lined_up_ = false;  // it has died
  }
  return kNone;
}

template <std::uint64_t (*version_of)(PyObject*)>
std::ptrdiff_t HostGuard::check_versions(std::vector<Versioned>& rows) {
  for (Versioned& one : rows) {
    if (one.version != 0 && one.version == version_of(one.object)) [[likely]]
      continue;
    const std::ptrdiff_t place = look(one.node);
    if (place != kNone || !is_lined_up_) return place;
    one.version = nodes_[one.node].version;
  }
  return kNone;
}

std::ptrdiff_t HostGuard::check_words() {
  for (Word& word : words_) {
    if (word_at(word.at) == word.expected) [[likely]]
      continue;
    const std::size_t row = nodes_of_words_[static_cast<std::size_t>(&word - words_.data())];
    const std::ptrdiff_t place = look(row);
    if (place != kNone || !is_lined_up_) return place;
    if (nodes_[row].kind != NodeKind::cell) {
      is_lined_up_ = false;
      return kNone;
    }
    word.expected = nodes_[row].entries.front().expected.pointer;  // another object of the same value
  }
  return kNone;
}

std::ptrdiff_t HostGuard::check_lists() {
  for (const Sequence& one : lists_) {
    const std::vector<Entry>& entries = nodes_[one.node].entries;
    const auto size = static_cast<std::size_t>(PyList_GET_SIZE(one.list));
    PyObject* const* const items = reinterpret_cast<PyListObject*>(one.list)->ob_item;
    if (size == entries.size() && (size == 0 || std::memcmp(items, &items_[one.first], size * sizeof(PyObject*)) == 0))
        [[likely]]
      continue;
    const std::ptrdiff_t place = look(one.node);
    if (place != kNone || !is_lined_up_) return place;
    for (std::size_t i = 0; i < entries.size(); ++i) items_[one.first + i] = entries[i].expected.pointer;
  }
  return kNone;
}

std::ptrdiff_t HostGuard::check_living_leaves() const {
  for (const bool requires_grad : {false, true}) {
    for (const LivingLeaf& one : living_leaves_[requires_grad ? 1 : 0]) {
      if (word_at(one.impl_at) != one.impl || *one.requires_grad_at != requires_grad) [[unlikely]]
        return place_of_leaf();
    }
  }
  for (const std::size_t leaf : other_leaves_) {
    if (const std::ptrdiff_t place = check_leaf(leaves_[leaf]); place != kNone) return place;
  }
  return kNone;
}

// The first that is not as it was.
std::ptrdiff_t HostGuard::place_of_leaf() const {
  for (const Leaf& leaf : leaves_) {
    if (const std::ptrdiff_t place = check_leaf(leaf); place != kNone) return place;
  }
  return kNone;
}

std::ptrdiff_t HostGuard::check_leaf(const Leaf& leaf) const {
  if (alive(leaf.reference.ptr()) != leaf.tensor) return kNone;
  const at::Tensor& tensor = THPVariable_Unpack(leaf.tensor);
  if (tensor.unsafeGetTensorImpl() != leaf.impl) return leaf.place;
  const bool now = leaf.meta != nullptr ? leaf.meta->requires_grad_ : tensor.requires_grad();
  return now == leaf.requires_grad ? kNone : leaf.place;
}

// --- Rows ---

// All nodes are as they were, or have changed since they were looked at: an expected word is never one that was not compared.
void HostGuard::line_up() {
  dicts_.clear();
  types_.clear();
  words_.clear();
  nodes_of_words_.clear();
  dicts_of_objects_.clear();
  lists_.clear();
  items_.clear();
  for (std::vector<LivingLeaf>& leaves : living_leaves_) leaves.clear();
  other_leaves_.clear();
  others_.clear();
  events_.list();
  Living living;
  line_up_kept(living);
  for (std::size_t row = 0; row < nodes_.size(); ++row) {
    if (nodes_[row].kind == NodeKind::object) line_up_object(row, living);
  }
  for (std::size_t row = 0; row < nodes_.size(); ++row) {
    if (nodes_[row].kind == NodeKind::function) line_up_function(row, living);
    if (nodes_[row].kind == NodeKind::list) line_up_list(row, living);
  }
  line_up_leaves(living);
  is_lined_up_ = true;
}

void HostGuard::add_word(const void* at, const void* expected, std::size_t row) {
  words_.push_back({at, expected});
  nodes_of_words_.push_back(row);
}

// Dictionaries, classes and cells, which the guard keeps, and what they hold; functions that are followed.
void HostGuard::line_up_kept(Living& living) {
  for (std::size_t row = 0; row < nodes_.size(); ++row) {
    const Node& node = nodes_[row];
    const bool is_versioned = events_.followed(row) == nullptr && node.version != 0;
    switch (node.kind) {
      case NodeKind::dict:
      case NodeKind::type:
        if (is_versioned) (node.kind == NodeKind::dict ? dicts_ : types_).push_back({node.pointer, node.version, row});
        if (!is_versioned && events_.followed(row) == nullptr) {
          others_.push_back(row);
          break;
        }
        for (const Entry& entry : node.entries) living.insert(entry.expected.pointer);
        break;
      case NodeKind::tuple:  // is what it is
        for (const Entry& entry : node.entries) living.insert(entry.expected.pointer);
        break;
      case NodeKind::function:  // its end is told as well
        if (events_.followed(row) != nullptr) living.insert(events_.followed(row));
        break;
      case NodeKind::iterable:
      case NodeKind::bytes:
      case NodeKind::value:
        others_.push_back(row);
        break;
      default:
        break;
    }
  }
  for (std::size_t row = 0; row < nodes_.size(); ++row) {
    if (nodes_[row].kind != NodeKind::cell) continue;
    const Expected& content = nodes_[row].entries.front().expected;
    add_word(&reinterpret_cast<PyCellObject*>(nodes_[row].pointer)->ob_ref, content.pointer, row);
    if (content.is_weak) prove_alive(content.pointer, content.kept, row, living);
  }
}

// See Note [Words of living objects].
void HostGuard::prove_alive(PyObject* object, const py::object& reference, std::size_t row, Living& living) {
  if (!living.insert(object).second || PyWeakref_CheckRefExact(reference.ptr()) == 0) return;
  add_word(&reinterpret_cast<PyWeakReference*>(reference.ptr())->wr_object, object, row);
}

void HostGuard::line_up_object(std::size_t row, Living& living) {
  const Node& node = nodes_[row];
  PyObject* const object = held(node);
  if (object == nullptr) return;  // for good
  PyObject* const followed = events_.followed(row);
  PyObject** const dict = _PyObject_GetDictPtr(object);
  if (!node.slots.empty() || dict == nullptr || *dict == nullptr || (followed == nullptr && node.version == 0)) {
    others_.push_back(row);
    return;
  }
  prove_alive(object, node.kept, row, living);
  add_word(&object->ob_type, node.type.ptr(), row);
  if (followed != nullptr) {
    add_word(dict, followed, row);
    for (const Entry& entry : node.entries) living.insert(entry.expected.pointer);
  } else {
    add_word(dict, *dict, row);
    dicts_of_objects_.push_back({*dict, node.version, row});
  }
}

// What tells of functions tells of all but their closure, which no Python changes.
void HostGuard::line_up_function(std::size_t row, Living& living) {
  const Node& node = nodes_[row];
  if (events_.followed(row) != nullptr) return;
  PyObject* const object = held(node);
  if (object == nullptr) return;
  if (!PyFunction_Check(object)) {
    others_.push_back(row);
    return;
  }
  prove_alive(object, node.kept, row, living);
  auto* const function = reinterpret_cast<PyFunctionObject*>(object);
  PyObject** const parts[] = {&function->func_code, &function->func_defaults, &function->func_kwdefaults,
                              &function->func_closure};
  for (std::size_t i = 0; i < node.entries.size(); ++i) {
    const Expected& expected = node.entries[i].expected;
    const bool is_none = expected.pointer == Py_None && *parts[i] == nullptr;
    add_word(parts[i], is_none ? nullptr : expected.pointer, row);
  }
}

void HostGuard::line_up_list(std::size_t row, Living& living) {
  const Node& node = nodes_[row];
  lists_.push_back({node.pointer, items_.size(), row});
  for (const Entry& entry : node.entries) {
    items_.push_back(entry.expected.pointer);
    if (entry.expected.is_weak) prove_alive(entry.expected.pointer, entry.expected.kept, row, living);
  }
}

void HostGuard::line_up_leaves(const Living& living) {
  static_assert(sizeof(at::Tensor) == sizeof(void*));
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = leaves_[i];
    if (leaf.meta == nullptr || living.count(leaf.tensor) == 0 || alive(leaf.reference.ptr()) != leaf.tensor) {
      other_leaves_.push_back(i);
      continue;
    }
    std::vector<LivingLeaf>& leaves = living_leaves_[leaf.requires_grad ? 1 : 0];
    leaves.push_back({&THPVariable_Unpack(leaf.tensor), leaf.impl, &leaf.meta->requires_grad_});
  }
}

}  // namespace pianola::python
