#pragma once
#include <bindings/plain_tree.hpp>

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola::python {

/// The arguments of calls that were replayed, and the state that they were in.
///
/// Threads:  With the GIL.
class KnownCall {
 public:
  /// @param followed  Which of the leaves that are no tensors are numbers whose values the state's path is asked about.
  KnownCall(const PlainTree& arguments, const py::object& state, std::int64_t number,
            std::vector<std::size_t> followed);

  [[nodiscard]] bool has(const PlainTree& arguments) const;
  /// The numbers that are followed, of arguments that has() knows.
  [[nodiscard]] py::tuple numbers_in(const PlainTree& arguments) const;
  /// The state; null where it is gone, its calls do something else with such numbers, or what it read on the host is not as it
  /// was. `values`: of what its graphs have slots for.
  [[nodiscard]] py::object state_now(const py::tuple& numbers, py::object& values) const;

  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] bool follows_numbers() const { return !followed_.empty(); }

 private:
  struct Frozen {
    py::object value;
    bool is_weak;  // an object of the user's, which may hold the function, where the collector would not see it
    [[nodiscard]] PyObject* get() const;
  };

  std::vector<std::size_t> followed_;
  std::string outline_;
  std::vector<py::object> keys_;
  std::vector<Frozen> frozen_;
  py::object state_;  // weakly: what it guards may hold the function as well
  std::int64_t number_;
};

/// An attribute by a name that is interned. @throws py::error_already_set
py::object attribute(const py::handle& object, PyObject* name);

}  // namespace pianola::python
