#include <bindings/python_call.hpp>

#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>

#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

std::vector<trace::WeakTensor> weakly(const std::vector<at::Tensor>& tensors) {
  std::vector<trace::WeakTensor> weak;
  for (const at::Tensor& tensor : tensors) weak.emplace_back(tensor.getIntrusivePtr());
  return weak;
}

}  // namespace

PythonCall::PythonCall(py::object call, py::object module) : call_(std::move(call)), module_(std::move(module)) {}

PythonCall::PythonCall(std::function<py::object()> make, py::object module)
    : make_(std::move(make)), module_(std::move(module)) {}

const py::object& PythonCall::object() const {
  if (!call_) call_ = make_();
  return call_;
}

void PythonCall::run_eagerly() {
  const WithGil gil;
  (void)call_python(object().attr("run_eagerly"));
}

callable::HostEffects PythonCall::run_observed() {
  const WithGil gil;
  using Effects = std::tuple<std::string, std::string, std::vector<at::Tensor>, bool, bool, bool, bool,
                             std::vector<std::pair<at::Tensor, std::string>>, bool, std::vector<at::Tensor>,
                             std::vector<at::Tensor>>;
  auto [lasting, passing, remade, late, is_no_example, begins_anew, runs_compiled, given, names_gradients, stored,
        cleared] = call_python(object().attr("run_observed")).cast<Effects>();
  return {.lasting = std::move(lasting),
          .passing = std::move(passing),
          .remade = std::move(remade),
          .only_returns_late_reads = late,
          .is_no_example = is_no_example,
          .begins_anew = begins_anew,
          .given = std::move(given),
          .names_gradients = names_gradients,
          .stored_gradients = weakly(stored),
          .cleared_gradients = weakly(cleared),
          .runs_compiled = runs_compiled};
}

void PythonCall::note_lasting_obstacle() {
  const WithGil gil;
  (void)call_python(object().attr("note_lasting_obstacle"));
}

bool PythonCall::note_inputs_elsewhere() {
  const WithGil gil;
  return call_python(object().attr("note_inputs_elsewhere")).cast<bool>();
}

void PythonCall::collect_garbage() {
  const WithGil gil;
  (void)call_python(py::module_::import("gc").attr("collect"));
}

std::vector<at::Tensor> PythonCall::eager_results() const {
  const WithGil gil;
  return call_python(object().attr("eager_results")).cast<std::vector<at::Tensor>>();
}

// Python's interrupts come wherever its code runs, that of the package among it.
bool PythonCall::was_interrupted(const std::exception& error) const {
  const WithGil gil;
  const auto* const raised = dynamic_cast<const py::error_already_set*>(&error);
  if (raised != nullptr && !raised->matches(PyExc_Exception)) return true;
  return py::len(object().attr("interrupts")) != 0;
}

bool PythonCall::tell_numbers_apart(const std::string& why, bool in_capture) {
  const WithGil gil;
  return call_python(object().attr("tell_numbers_apart"), py::make_tuple(in_python_words(why), in_capture))
      .cast<bool>();
}

std::vector<c10::IValue> PythonCall::numbers() const {
  if (!call_ && !make_) return {};
  const WithGil gil;
  return numbers_of(call_python(object().attr("known_numbers")).cast<py::tuple>());
}

std::vector<graph::NumberSlot> PythonCall::bind_numbers(const graph::NumberEvidence& evidence) {
  const WithGil gil;
  const auto to_python = [](const std::vector<c10::IValue>& numbers) {
    py::list list;
    for (const c10::IValue& number : numbers) list.append(torch::jit::toPyObject(number));
    return list;
  };
  py::list arguments, given;
  for (const auto& one : evidence.arguments) arguments.append(to_python(one));
  for (const auto& one : evidence.given) {
    given.append(py::make_tuple(one.operation, one.argument, one.can_be_set, one.is_collective, one.is_place,
                                one.sources, to_python(one.numbers)));
  }
  using Slots = std::vector<std::tuple<std::size_t, std::size_t, std::size_t>>;
  const py::object bound =
      call_python(object().attr("bind_numbers"), py::make_tuple(arguments, given, in_python_words(evidence.change)));
  std::vector<graph::NumberSlot> slots;
  for (const auto& [operation, argument, value] : bound.cast<Slots>()) {
    slots.push_back({.operation = operation, .argument = argument, .value = value});
  }
  return slots;
}

std::vector<c10::IValue> numbers_of(const py::tuple& numbers) {
  std::vector<c10::IValue> result;
  result.reserve(numbers.size());
  for (const py::handle number : numbers) {
    if (PyFloat_Check(number.ptr())) {
      result.emplace_back(PyFloat_AS_DOUBLE(number.ptr()));
      continue;
    }
    const std::int64_t value = PyLong_AsLongLong(number.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    result.emplace_back(value);
  }
  return result;
}

std::string PythonCall::changed_since(std::int64_t key) const {
  const WithGil gil;
  return call_python(object().attr("changed_since"), py::make_tuple(key)).cast<std::string>();
}

callable::Capturable PythonCall::to_capture() {
  const WithGil gil;
  const auto [function, structure] =
      call_python(object().attr("to_capture")).cast<std::pair<py::function, py::object>>();
  return {.callable = make_callable(function, module_), .structure = std::make_shared<HeldObject>(structure)};
}

std::function<void(const std::string&)> make_listener(const py::object& function) {
  return [held = HeldObject(function)](const std::string& reason) {
    const WithGil gil;
    (void)call_python(held.get(), py::make_tuple(in_python_words(reason)));
  };
}

}  // namespace pianola::python
