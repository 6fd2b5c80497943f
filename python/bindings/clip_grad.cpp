#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>

#include <pianola/training/clip_grad.hpp>
#include <pianola/training/finite_watch.hpp>

#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using TensorList = std::vector<at::Tensor>;

at::Tensor clip_grad_norm(const TensorList& parameters, double max_norm, double norm_type, FiniteWatch* watch,
                          std::vector<std::string> names) {
  return clip_grad_norm_(parameters, max_norm,
                         {.norm_type = norm_type, .error_if_nonfinite = watch, .names = std::move(names)});
}

at::Tensor clip_gradients_norm(const TensorList& gradients, double max_norm, double norm_type, FiniteWatch* watch,
                               std::vector<std::string> names) {
  return clip_gradients_norm_(gradients, max_norm,
                              {.norm_type = norm_type, .error_if_nonfinite = watch, .names = std::move(names)});
}

void clip_grad_value(const TensorList& parameters, double clip_value) { clip_grad_value_(parameters, clip_value); }

}  // namespace

void bind_clip_grad(py::module_& module) {
  module.def("clip_grad_norm_", &clip_grad_norm, py::arg("parameters"), py::arg("max_norm"), py::arg("norm_type"),
             py::arg("error_if_nonfinite").none(true), py::arg("names"), NoGil(),
             "Scales the parameters' gradients so that their norm is at most `max_norm`; returns the norm before.");
  module.def("clip_gradients_norm_", &clip_gradients_norm, py::arg("gradients"), py::arg("max_norm"),
             py::arg("norm_type"), py::arg("error_if_nonfinite").none(true), py::arg("names"), NoGil(),
             "The same for gradients.");
  module.def("clip_grad_value_", &clip_grad_value, py::arg("parameters"), py::arg("clip_value"), NoGil(),
             "Brings each element of the parameters' gradients into [-clip_value, clip_value].");
}

}  // namespace pianola::python
