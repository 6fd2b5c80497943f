#include <bindings/python_call.hpp>

#include <bindings/gil.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>

#include <memory>
#include <utility>

namespace pianola::python {

PythonCall::PythonCall(const py::object& call, py::object module) : call_(call), module_(std::move(module)) {}

void PythonCall::run_eagerly() {
  const WithGil gil;
  (void)call_python(call_.get().attr("run_eagerly"));
}

callable::HostEffects PythonCall::run_observed() {
  const WithGil gil;
  auto [lasting, passing] = call_python(call_.get().attr("run_observed")).cast<std::pair<std::string, std::string>>();
  return {.lasting = std::move(lasting), .passing = std::move(passing)};
}

std::vector<at::Tensor> PythonCall::eager_results() const {
  const WithGil gil;
  return call_python(call_.get().attr("eager_results")).cast<std::vector<at::Tensor>>();
}

bool PythonCall::was_interrupted() const {
  const WithGil gil;
  return py::len(call_.get().attr("interrupts")) != 0;
}

callable::Capturable PythonCall::to_capture() {
  const WithGil gil;
  const auto [function, structure] =
      call_python(call_.get().attr("to_capture")).cast<std::pair<py::function, py::object>>();
  return {.callable = make_callable(function, module_.get()), .structure = std::make_shared<HeldObject>(structure)};
}

std::function<void(const std::string&)> make_listener(const py::object& function) {
  return [held = HeldObject(function)](const std::string& reason) {
    const WithGil gil;
    (void)call_python(held.get(), py::make_tuple(in_python_words(reason)));
  };
}

}  // namespace pianola::python
