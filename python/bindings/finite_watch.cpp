#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>

#include <pianola/training/finite_watch.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using Pairs = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<NamedTensor> named(const Pairs& pairs) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : pairs) tensors.push_back({.name = name, .tensor = tensor});
  return tensors;
}

}  // namespace

void bind_finite_watch(py::module_& module) {
  py::class_<NonFiniteFinding>(module, "NonFiniteFinding", "The first step in which a checked tensor was not finite.")
      .def_readonly("step", &NonFiniteFinding::step, "Counted from 1.")
      .def_readonly("step_is_exact", &NonFiniteFinding::step_is_exact,
                    "Off after 2^24 steps: it was `step` or a later one.")
      .def_readonly("tensor", &NonFiniteFinding::tensor, "The first one, in the order of the checks.")
      .def_readonly("is_nan", &NonFiniteFinding::is_nan, "Else infinite.")
      .def_readonly("tensors", &NonFiniteFinding::tensors, "All of that step.");
  py::class_<FiniteWatch>(module, "FiniteWatch", "Finds NaN and infinity without a host synchronization.")
      .def(py::init([](c10::Device device, bool gradients, std::size_t max_tensors) {
             return std::make_unique<FiniteWatch>(
                 device, FiniteWatchOptions{.gradients = gradients, .max_tensors = max_tensors});
           }),
           py::arg("device"), py::kw_only(), py::arg("gradients"), py::arg("max_tensors"))
      .def("check", py::overload_cast<std::string, const at::Tensor&>(&FiniteWatch::check), py::arg("name"),
           py::arg("tensor"), "Checks one tensor.")
      .def(
          "check_all", [](FiniteWatch& self, const Pairs& tensors) { self.check(named(tensors)); }, py::arg("tensors"),
          "Checks many at once.")
      .def(
          "check_gradients",
          [](FiniteWatch& self, const Pairs& parameters) { self.check_gradients(named(parameters)); },
          py::arg("parameters"), "Checks the gradients of those parameters that have one.")
      .def("check_gradient_norms", &FiniteWatch::check_gradient_norms, py::arg("names"), py::arg("norms"),
           "Checks gradients by norms that are at hand: one for each name.")
      .def("found_inf", &FiniteWatch::found_inf, "Float32 [] on the device: 1 from the first bad check on, 0 before.")
      .def("end_step", &FiniteWatch::end_step,
           "Counts the step, and sends the host word. Call it after the last check.")
      .def("abandon_step", &FiniteWatch::abandon_step,
           "Forgets the checks since the last end_step(), after an exception in between.")
      .def("poll", &FiniteWatch::poll, NoGil(),
           "Throws NonFiniteError once the device has told that an earlier step was bad.")
      .def("wait", &FiniteWatch::wait, NoGil(),
           "Waits for the device, and throws NonFiniteError where any step so far was bad.")
      .def("find", &FiniteWatch::find, NoGil(), "What poll() would throw, as values; waits for the device.")
      .def("reset", &FiniteWatch::reset, py::arg("steps_done") = 0,
           "Forgets what was found and goes on counting behind step `steps_done`, in place.");
}

}  // namespace pianola::python
