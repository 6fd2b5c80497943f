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
      .def_readonly("step", &NonFiniteFinding::step)
      .def_readonly("step_is_exact", &NonFiniteFinding::step_is_exact)
      .def_readonly("tensor", &NonFiniteFinding::tensor)
      .def_readonly("is_nan", &NonFiniteFinding::is_nan)
      .def_readonly("tensors", &NonFiniteFinding::tensors);
  py::class_<FiniteWatch>(module, "FiniteWatch", "Finds NaN and infinity without a host synchronization.")
      .def(py::init([](c10::Device device, bool gradients, std::size_t max_tensors) {
             return std::make_unique<FiniteWatch>(
                 device, FiniteWatchOptions{.gradients = gradients, .max_tensors = max_tensors});
           }),
           py::arg("device"), py::kw_only(), py::arg("gradients"), py::arg("max_tensors"))
      .def("check", py::overload_cast<std::string, const at::Tensor&>(&FiniteWatch::check), py::arg("name"),
           py::arg("tensor"))
      .def(
          "check_all", [](FiniteWatch& self, const Pairs& tensors) { self.check(named(tensors)); }, py::arg("tensors"))
      .def(
          "check_gradients",
          [](FiniteWatch& self, const Pairs& parameters) { self.check_gradients(named(parameters)); },
          py::arg("parameters"))
      .def("check_gradient_norms", &FiniteWatch::check_gradient_norms, py::arg("names"), py::arg("norms"))
      .def("found_inf", &FiniteWatch::found_inf)
      .def("end_step", &FiniteWatch::end_step)
      .def("abandon_step", &FiniteWatch::abandon_step)
      .def("poll", &FiniteWatch::poll, NoGil())
      .def("wait", &FiniteWatch::wait, NoGil())
      .def("find", &FiniteWatch::find, NoGil())
      .def("reset", &FiniteWatch::reset, py::arg("steps_done") = 0);
}

}  // namespace pianola::python
