#pragma once
#include <pianola/callable/call.hpp>

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace pianola::python {

/// A call that a Python object makes: run_eagerly(), run_observed() -> (lasting, passing, remade, only_returns_late_reads,
/// is_no_example, begins_anew, runs_compiled, given), note_lasting_obstacle(), note_inputs_elsewhere(), eager_results() and
/// to_capture() -> (function, structure). Made, used and destroyed with the GIL; its methods take it.
class PythonCall final : public callable::Call {
 public:
  PythonCall(py::object call, py::object module);
  /// `make` gives the object, where it is needed: a call that is replayed needs none.
  PythonCall(std::function<py::object()> make, py::object module);

  [[nodiscard]] const py::object& object() const;  ///< With the GIL.

  void run_eagerly() override;
  [[nodiscard]] callable::HostEffects run_observed() override;
  void note_lasting_obstacle() override;
  [[nodiscard]] bool note_inputs_elsewhere() override;
  void collect_garbage() override;
  [[nodiscard]] std::vector<at::Tensor> eager_results() const override;
  [[nodiscard]] bool was_interrupted(const std::exception& error) const override;
  [[nodiscard]] bool tell_numbers_apart(const std::string& why, bool in_capture) override;
  [[nodiscard]] std::vector<c10::IValue> numbers() const override;
  [[nodiscard]] std::vector<graph::NumberSlot> bind_numbers(const graph::NumberEvidence& evidence) override;
  [[nodiscard]] std::string changed_since(std::int64_t key) const override;
  [[nodiscard]] callable::Capturable to_capture() override;

 private:
  std::function<py::object()> make_;
  mutable py::object call_;  // null until it is made
  py::object module_;
};

/// Ints and floats. @throws py::error_already_set  One is too large.
std::vector<c10::IValue> numbers_of(const py::tuple& numbers);

/// Hands a reason to a Python function, in the words of Python.
std::function<void(const std::string&)> make_listener(const py::object& function);

}  // namespace pianola::python
