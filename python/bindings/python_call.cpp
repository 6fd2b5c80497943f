#include <bindings/python_call.hpp>

#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::python {

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
  auto [lasting, passing, remade] =
      call_python(object().attr("run_observed")).cast<std::tuple<std::string, std::string, std::vector<at::Tensor>>>();
  return {.lasting = std::move(lasting), .passing = std::move(passing), .remade = std::move(remade)};
}

void PythonCall::note_lasting_obstacle() {
  const WithGil gil;
  (void)call_python(object().attr("note_lasting_obstacle"));
}

void PythonCall::collect_garbage() {
  const WithGil gil;
  (void)call_python(py::module_::import("gc").attr("collect"));
}

std::vector<at::Tensor> PythonCall::eager_results() const {
  const WithGil gil;
  return call_python(object().attr("eager_results")).cast<std::vector<at::Tensor>>();
}

bool PythonCall::was_interrupted() const {
  const WithGil gil;
  return py::len(object().attr("interrupts")) != 0;
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
