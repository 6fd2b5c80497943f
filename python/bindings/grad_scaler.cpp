#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>

#include <pianola/training/grad_scaler.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

std::unique_ptr<GradScaler> make_scaler(c10::Device device, double init_scale, double growth_factor,
                                        double backoff_factor, std::int64_t growth_interval, bool enabled) {
  return std::make_unique<GradScaler>(device, GradScalerOptions{.init_scale = init_scale,
                                                                .growth_factor = growth_factor,
                                                                .backoff_factor = backoff_factor,
                                                                .growth_interval = growth_interval,
                                                                .enabled = enabled});
}

py::dict dict_of_scaler(const GradScaler& scaler) {
  const c10::impl::GenericDict state = [&] {
    const WithoutGil release;
    return scaler.state_dict().toGenericDict();
  }();
  py::dict result;
  for (const auto& entry : state) {
    const py::str key(entry.key().toStringRef());
    if (entry.value().isInt()) {
      result[key] = entry.value().toInt();
    } else {
      result[key] = entry.value().toDouble();
    }
  }
  return result;
}

// What is no number is left for the library to name.
c10::IValue as_value(const py::handle& object) {
  if (py::isinstance<py::int_>(object)) return object.cast<std::int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  return py::str(object).cast<std::string>();
}

void load_scaler(GradScaler& scaler, const py::dict& state) {
  c10::impl::GenericDict entries(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : state) entries.insert(py::str(key).cast<std::string>(), as_value(value));
  scaler.load_state_dict(entries);
}

std::vector<std::pair<std::string, at::Tensor>> state(const GradScaler& scaler) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const NamedTensor& named : scaler.state()) all.emplace_back(named.name, named.tensor);
  return all;
}

}  // namespace

void bind_grad_scaler(py::module_& module) {
  py::class_<GradScaler>(module, "GradScaler", "Scales losses, and skips steps whose gradients overflowed.")
      .def(py::init(&make_scaler), py::arg("device"), py::kw_only(), py::arg("init_scale"), py::arg("growth_factor"),
           py::arg("backoff_factor"), py::arg("growth_interval"), py::arg("enabled"))
      .def("scale", &GradScaler::scale, py::arg("outputs"), "The outputs times the scale.")
      .def("unscale_", &GradScaler::unscale_, py::arg("optimizer"), NoGil(),
           "Divides the gradients by the scale, in place.")
      .def("step", &GradScaler::step, py::arg("optimizer"), NoGil(),
           "The optimizer's step, which leaves everything as it is where a gradient is not finite.")
      .def("update", py::overload_cast<>(&GradScaler::update), NoGil(), "Adapts the scale after all optimizers' steps.")
      .def("update", py::overload_cast<const at::Tensor&>(&GradScaler::update), py::arg("new_scale"), NoGil(),
           "Sets the scale.")
      .def("update", py::overload_cast<double>(&GradScaler::update), py::arg("new_scale"), NoGil(), "Sets the scale.")
      .def("abandon_step", &GradScaler::abandon_step,
           "Forgets what unscale_() and step() noted since the last update(), after an exception in between.")
      .def("is_enabled", &GradScaler::enabled, "Whether it does anything.")
      .def(
          "get_growth_factor", [](const GradScaler& self) { return self.options().growth_factor; },
          "By which the scale grows.")
      .def(
          "get_backoff_factor", [](const GradScaler& self) { return self.options().backoff_factor; },
          "By which the scale shrinks.")
      .def(
          "get_growth_interval", [](const GradScaler& self) { return self.options().growth_interval; },
          "After how many good steps in a row the scale grows.")
      .def_property_readonly("current_scale", &GradScaler::current_scale, "The scale itself: float32 [] on the device.")
      .def_property_readonly("growth_tracker", &GradScaler::growth_tracker,
                             "Good steps in a row: int32 [] on the device.")
      .def_property_readonly("skipped_steps", &GradScaler::skipped_steps,
                             "How many steps were skipped so far: int64 [] on the device, a copy.")
      .def("found_inf", &GradScaler::found_inf, py::arg("optimizer"),
           "Not 0 where the optimizer's gradients were not finite: float32 [], from unscale_() or step() to update().")
      .def("state", &state, "Every tensor that a step writes.")
      .def("state_dict", &dict_of_scaler, "That of torch.amp.GradScaler; waits for the device.")
      .def("load_state_dict", &load_scaler, py::arg("state_dict"),
           "Fills the tensors that are there, so that graphs go on with what is loaded.");
}

}  // namespace pianola::python
