#include <bindings/object_events.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

// Threads that run without the GIL would change things while others are told of it.
#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_GIL_DISABLED)
#define PIANOLA_PYTHON_TELLS 1
#else
#define PIANOLA_PYTHON_TELLS 0
#endif

namespace pianola::python {

#if PIANOLA_PYTHON_TELLS

namespace {

struct Follower {
  ObjectEvents* events;
  std::size_t row;
};

// Never destroyed: dictionaries die after everything else.
using Followers = std::unordered_map<PyObject*, std::vector<Follower>>;
Followers& followers() {
  static auto* const all = new Followers;
  return *all;
}

void tell(PyObject* object, bool is_gone) noexcept {
  const auto found = followers().find(object);
  if (found == followers().end()) return;
  for (const Follower& one : found->second) one.events->note(one.row, is_gone);
  if (is_gone) followers().erase(found);
}

int on_dict(PyDict_WatchEvent event, PyObject* dict, PyObject* /*key*/, PyObject* /*value*/) {
  tell(dict, event == PyDict_EVENT_DEALLOCATED);
  return 0;
}

// Of all functions there are: this is not told for those alone that are followed.
int on_function(PyFunction_WatchEvent event, PyFunctionObject* function, PyObject* /*value*/) {
  if (event == PyFunction_EVENT_CREATE) return 0;
  tell(reinterpret_cast<PyObject*>(function), event == PyFunction_EVENT_DESTROY);
  return 0;
}

// An interpreter has eight watchers of a kind, for everybody. They are taken when they are first needed, and kept.
class Watchers {
 public:
  Watchers()
      : interpreter_(PyInterpreterState_Get()),
        dicts_(PyDict_AddWatcher(&on_dict)),
        functions_(PyFunction_AddWatcher(&on_function)) {
    PyErr_Clear();
  }

  [[nodiscard]] bool watch(PyObject* object) const {
    if (PyInterpreterState_Get() != interpreter_) return false;
    if (PyFunction_Check(object)) return functions_ >= 0;
    if (dicts_ < 0 || PyDict_Watch(dicts_, object) == 0) return dicts_ >= 0;
    PyErr_Clear();
    return false;
  }

  void unwatch(PyObject* object) const noexcept {
    if (PyFunction_Check(object) || PyDict_Unwatch(dicts_, object) == 0) return;
    PyErr_Clear();
  }

 private:
  PyInterpreterState* interpreter_;
  int dicts_;
  int functions_;
};

const Watchers& watchers() {
  static const Watchers all;
  return all;
}

// Then nobody tells of the end of what is followed.
bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

bool ObjectEvents::follow(std::size_t row, PyObject* object) {
  if (rows_[row].followed != object) {
    stop(row);
    if (is_ending() || !watchers().watch(object)) return false;
    followers()[object].push_back({this, row});
    rows_[row].followed = object;
  }
  rows_[row].has_changed = false;
  return true;
}

void ObjectEvents::stop(std::size_t row) noexcept {
  rows_[row].has_changed = false;
  PyObject* const object = std::exchange(rows_[row].followed, nullptr);
  if (object == nullptr) return;
  const auto found = followers().find(object);
  std::vector<Follower>& all = found->second;
  const auto mine =
      std::find_if(all.begin(), all.end(), [&](const Follower& one) { return one.events == this && one.row == row; });
  *mine = all.back();
  all.pop_back();
  if (!all.empty()) return;
  followers().erase(found);
  if (!is_ending()) watchers().unwatch(object);
}

#else

bool ObjectEvents::follow(std::size_t /*row*/, PyObject* /*object*/) { return false; }
void ObjectEvents::stop(std::size_t row) noexcept { rows_[row].has_changed = false; }

#endif

void ObjectEvents::reserve(std::size_t rows) {
  rows_.resize(rows);
  listed_.reserve(rows);
  taken_.reserve(rows);
}

void ObjectEvents::clear() noexcept {
  for (std::size_t row = 0; row < rows_.size(); ++row) stop(row);
  rows_.clear();
  listed_.clear();
}

void ObjectEvents::note(std::size_t row, bool is_gone) noexcept {
  Row& one = rows_[row];
  if (is_gone) one.followed = nullptr;
  one.has_changed = true;
  if (one.is_listed) return;
  one.is_listed = true;
  listed_.push_back(static_cast<std::uint32_t>(row));
}

const std::vector<std::uint32_t>& ObjectEvents::take() {
  taken_.clear();
  taken_.swap(listed_);
  for (const std::uint32_t row : taken_) rows_[row].is_listed = false;
  std::sort(taken_.begin(), taken_.end());
  return taken_;
}

void ObjectEvents::list() noexcept {
  listed_.clear();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    rows_[row].is_listed = rows_[row].has_changed;
    if (rows_[row].has_changed) listed_.push_back(static_cast<std::uint32_t>(row));
  }
}

}  // namespace pianola::python
