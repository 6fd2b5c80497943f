#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pianola::python {

/// Which of the dictionaries and functions that one guard follows have changed since it looked at them. The interpreter tells
/// (Python 3.12 and later), so that nobody has to ask a thousand of them at each call.
///
/// What is followed has a number, a row of the guard's. A row is quiet from follow() until the interpreter tells of a change,
/// or of the end, of what it follows. The interpreter tells before it changes a thing: whoever is told only takes a note.
///
/// References:  none; what dies is followed no more.
/// Threads:     Any, with the GIL.
class ObjectEvents {
 public:
  ObjectEvents() = default;
  ObjectEvents(const ObjectEvents&) = delete;
  ObjectEvents& operator=(const ObjectEvents&) = delete;
  ~ObjectEvents() { clear(); }

  /// Before the first follow(): the number of rows.
  void reserve(std::size_t rows);

  /// From now on the row is this object's, a dict or a function, and quiet. Called before the object is looked at. False: there
  /// is nobody who would tell: an older interpreter, or one whose watchers are all taken.
  bool follow(std::size_t row, PyObject* object);
  /// The row follows nothing, and has not changed.
  void stop(std::size_t row) noexcept;
  void clear() noexcept;

  /// What a row follows, borrowed; null: nothing.
  [[nodiscard]] PyObject* followed(std::size_t row) const { return rows_[row].followed; }
  [[nodiscard]] bool is_quiet(std::size_t row) const {
    return rows_[row].followed != nullptr && !rows_[row].has_changed;
  }
  [[nodiscard]] bool has_changed(std::size_t row) const { return rows_[row].has_changed; }

  /// Whether rows have changed since the last take().
  [[nodiscard]] bool any() const { return !listed_.empty(); }
  /// These rows, in order; some may have been followed again since. They stay changed until they are, but are not listed.
  [[nodiscard]] const std::vector<std::uint32_t>& take();
  /// Lists all that have changed.
  void list() noexcept;

  /// `is_gone`: so has what it follows.
  void note(std::size_t row, bool is_gone) noexcept;

 private:
  struct Row {
    PyObject* followed = nullptr;
    bool has_changed = false;
    bool is_listed = false;
  };

  std::vector<Row> rows_;
  std::vector<std::uint32_t> listed_;  // each row once: there is room for all, so a note never allocates
  std::vector<std::uint32_t> taken_;
};

}  // namespace pianola::python
