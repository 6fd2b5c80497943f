#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_error.hpp>

#include <pianola/verify/verify.hpp>

#include <torch/csrc/Dtype.h>

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

// Takes tensors, gives a list of tensors.
VerifyStep as_step(const py::function& function) {
  return [held = HeldObject(function)](const std::vector<at::Tensor>& inputs) {
    const WithGil gil;
    try {
      py::tuple arguments(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) arguments[i] = py::cast(inputs[i]);
      return or_park([&] { return py::object(held.get()(*arguments)); }).cast<std::vector<at::Tensor>>();
    } catch (const py::error_already_set& raised) {
      std::rethrow_exception(as_cpp_error(raised));
    }
  };
}

std::function<void(int)> as_between(const py::object& function) {
  if (function.is_none()) return {};
  return [held = HeldObject(function)](int steps) {
    const WithGil gil;
    try {
      or_park([&] { (void)held.get()(steps); });
    } catch (const py::error_already_set& raised) {
      std::rethrow_exception(as_cpp_error(raised));
    }
  };
}

std::function<void()> as_reset(const py::object& function) {
  if (function.is_none()) return {};
  return [held = HeldObject(function)] {
    const WithGil gil;
    try {
      or_park([&] { (void)held.get()(); });
    } catch (const py::error_already_set& raised) {
      std::rethrow_exception(as_cpp_error(raised));
    }
  };
}

c10::ScalarType dtype_of(const py::handle& object) {
  if (!THPDtype_Check(object.ptr())) throw py::type_error("a tolerance is given per torch.dtype");
  return reinterpret_cast<THPDtype*>(object.ptr())->scalar_type;
}

std::map<c10::ScalarType, Tolerance> tolerances_of(const py::dict& given) {
  std::map<c10::ScalarType, Tolerance> tolerances;
  for (const auto& [dtype, tolerance] : given) {
    const auto [absolute, relative, ulps] = tolerance.cast<std::tuple<double, double, std::int64_t>>();
    tolerances[dtype_of(dtype)] = {.absolute = absolute, .relative = relative, .ulps = ulps};
  }
  return tolerances;
}

VerifyReport run_verify(const py::function& eager, const py::function& graphed,
                        const std::vector<std::pair<std::string, at::Tensor>>& state, int steps,
                        std::vector<std::vector<at::Tensor>> inputs, const py::object& between, const py::object& reset,
                        int graphed_warmup, const py::dict& tolerance, bool repeat_eager, bool poison, bool narrow,
                        std::vector<at::Generator> generators, std::string subject) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : state) named.push_back({.name = name, .tensor = tensor});
  const VerifyOptions options{.steps = steps,
                              .inputs = std::move(inputs),
                              .between = as_between(between),
                              .reset = as_reset(reset),
                              .graphed_warmup = graphed_warmup,
                              .tolerance = tolerances_of(tolerance),
                              .repeat_eager = repeat_eager,
                              .poison = poison,
                              .narrow = narrow,
                              .generators = std::move(generators),
                              .subject = std::move(subject)};
  const VerifyStep one = as_step(eager), other = as_step(graphed);
  const WithoutGil release;
  return verify(one, other, named, options);
}

void bind_parts(py::module_& module) {
  py::class_<TensorDifference>(module, "TensorDifference", "How two tensors that should be the same differ.")
      .def_readonly(
          "name", &TensorDifference::name,
          "\"output 0\", \"input 1\", \"grad of model.0.weight\", \"model.0.weight\", \"generator of cuda:0\".")
      .def_readonly("role", &TensorDifference::role,
                    "\"output\", \"input\" (as the step left it), \"gradient\", \"state\" or \"generator\".")
      .def_readonly("step", &TensorDifference::step, "Counted from 1.")
      .def_readonly("shape", &TensorDifference::shape, "\"Float [16, 64]\"")
      .def_readonly("elements", &TensorDifference::elements, "How many the tensor has.")
      .def_readonly("differing", &TensorDifference::differing, "Elements that differ beyond the tolerance.")
      .def_readonly("max_absolute", &TensorDifference::max_absolute,
                    "Infinite where NaN or an infinity meets a number.")
      .def_readonly("max_relative", &TensorDifference::max_relative, "To eager's value, where that is not 0.")
      .def_readonly("max_ulps", &TensorDifference::max_ulps,
                    "Of floating-point tensors; NaN against a number is the largest value.")
      .def_readonly("first", &TensorDifference::first, "\"[3, 7]: eager 0.125, graph 0.5\"")
      .def_readonly("note", &TensorDifference::note,
                    "Where there is more to say: another shape, undefined on one side.");
  py::class_<DifferenceOrigin>(module, "DifferenceOrigin", "Where a difference starts.")
      .def_readonly("op", &DifferenceOrigin::op, "\"aten::mul.Tensor\"")
      .def_readonly("number", &DifferenceOrigin::number, "Of the operations of the step, from 1.")
      .def_readonly("module", &DifferenceOrigin::module, "Path of the module, or open user scopes.")
      .def_property_readonly(
          "file", [](const DifferenceOrigin& self) { return self.place.file; },
          "Of the user's line; empty where it is not known.")
      .def_property_readonly(
          "line", [](const DifferenceOrigin& self) { return self.place.line; },
          "In that file; 0 where it is not known.")
      .def_property_readonly(
          "function", [](const DifferenceOrigin& self) { return self.place.function; },
          "The user's function; may be empty.")
      .def_readonly("what", &DifferenceOrigin::what, "\"its result 0 differs, its inputs are the same\"");
  py::class_<MissingState>(module, "MissingState", "A tensor that the step writes and nobody listed.")
      .def_readonly("shape", &MissingState::shape, "\"Float [16, 64]\"")
      .def_readonly("op", &MissingState::op, "The first operation that writes it.")
      .def_property_readonly(
          "file", [](const MissingState& self) { return self.place.file; },
          "Of the user's line; empty where it is not known.")
      .def_property_readonly(
          "line", [](const MissingState& self) { return self.place.line; }, "In that file; 0 where it is not known.");
}

}  // namespace

void bind_verify(py::module_& module) {
  bind_parts(module);
  py::class_<VerifyReport>(module, "VerifyReport", "What verify() found out.")
      .def_property_readonly(
          "verdict", [](const VerifyReport& self) { return in_words(self.verdict); },
          "\"equal\", \"differs\", \"nondeterministic\" or \"failed\".")
      .def_property_readonly("ok", &VerifyReport::ok, "The verdict is equal.")
      .def_readonly("steps", &VerifyReport::steps, "That were compared.")
      .def_readonly("tensors", &VerifyReport::tensors, "Compared at each step.")
      .def_readonly("within_tolerance", &VerifyReport::within_tolerance, "Equal only thanks to a tolerance.")
      .def_readonly("error", &VerifyReport::error, "Why it failed: what was raised, by which side, in which step.")
      .def_readonly("differences", &VerifyReport::differences,
                    "Of the first step that differs, in the order in which eager computes them; empty where equal.")
      .def_readonly("eager_differences", &VerifyReport::eager_differences,
                    "Tensors in which two eager runs differ, at the first step in which one does.")
      .def_readonly("origin", &VerifyReport::origin, "Where the difference starts; None where that was not found.")
      .def_readonly("missing_state", &VerifyReport::missing_state, "Tensors that the step writes and nobody listed.")
      .def_readonly("notes", &VerifyReport::notes, "What else there is to know, a sentence each.")
      .def_property_readonly(
          "eager_us", [](const VerifyReport& self) { return self.eager_time.count(); },
          "Of all eager steps, comparing not counted, in microseconds.")
      .def_property_readonly(
          "graphed_us", [](const VerifyReport& self) { return self.graphed_time.count(); },
          "Of all graphed steps, in microseconds.")
      .def_property_readonly(
          "total_us", [](const VerifyReport& self) { return self.total_time.count(); },
          "Of the whole verification, in microseconds.")
      .def_property_readonly("exit_code", &VerifyReport::exit_code, "0 where ok, 1 where it failed, 3 otherwise.")
      .def("to_text", &VerifyReport::to_text, "For people.")
      .def("to_json", &VerifyReport::to_json, py::arg("indent") = 2, "One JSON object.")
      .def("__str__", &VerifyReport::to_text);
  module.def("verify", &run_verify, py::arg("eager"), py::arg("graphed"), py::kw_only(), py::arg("state"),
             py::arg("steps"), py::arg("inputs"), py::arg("between"), py::arg("reset"), py::arg("graphed_warmup"),
             py::arg("tolerance"), py::arg("repeat_eager"), py::arg("poison"), py::arg("narrow"), py::arg("generators"),
             py::arg("subject"), "Runs both from the same state and compares all that they leave behind.");
}

}  // namespace pianola::python
