#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/plain_value.hpp>

#include <pianola/training/learning_rate_schedule.hpp>
#include <pianola/training/optimizer.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

LearningRate of_function(const py::function& function) {
  return LearningRate([held = HeldObject(function)](std::int64_t step, double base) {
    const WithGil gil;
    return held.get()(step, base).cast<double>();
  });
}

template <typename Schedule>
void add_state(py::class_<Schedule>& bound) {
  bound.def("step", &Schedule::step, "Counts on, and writes the next rates.")
      .def_property_readonly("steps", &Schedule::steps, "How many steps were taken.")
      .def(
          "state_dict", [](const Schedule& self) { return as_python(self.state_dict()); },
          "{\"steps\": n, \"base_rates\": [...]}")
      .def(
          "load_state_dict", [](Schedule& self, const py::dict& state) { self.load_state_dict(as_plain_value(state)); },
          py::arg("state_dict"),
          "Writes the rates of the step that is loaded; a state of other base rates changes nothing.");
}

void bind_rate(py::module_& module) {
  const OneCycleOptions cycle;
  py::class_<LearningRate>(module, "LearningRate", "A learning rate as a function of the step and of a base rate.")
      .def(py::init(&of_function), py::arg("function"))
      .def_static("constant", &LearningRate::constant, "The base rate.")
      .def_static("linear", &LearningRate::linear, py::arg("steps"), py::arg("start"), py::arg("end"),
                  "From `start` times the base rate to `end` times it, in `steps` steps (LinearLR).")
      .def_static("cosine", &LearningRate::cosine, py::arg("steps"), py::arg("minimum") = 0.0,
                  "Half a cosine from the base rate down to `minimum`, in `steps` steps (CosineAnnealingLR).")
      .def_static(
          "one_cycle",
          [](std::int64_t steps, double pct_start, double div_factor, double final_div_factor) {
            return LearningRate::one_cycle(
                steps, {.pct_start = pct_start, .div_factor = div_factor, .final_div_factor = final_div_factor});
          },
          py::arg("steps"), py::kw_only(), py::arg("pct_start") = cycle.pct_start,
          py::arg("div_factor") = cycle.div_factor, py::arg("final_div_factor") = cycle.final_div_factor,
          "Up to the base rate and down to nearly nothing, in `steps` steps all in all (OneCycleLR).")
      .def_static("step_decay", &LearningRate::step_decay, py::arg("every"), py::arg("gamma") = 0.1,
                  "Times `gamma` after every `every` steps (StepLR).")
      .def_static("sequence", &LearningRate::sequence, py::arg("first"), py::arg("steps"), py::arg("second"),
                  "`first` for `steps` steps, then `second`, which counts from 0 there.")
      .def_static("warmup", &LearningRate::warmup, py::arg("steps"), py::arg("after"), py::arg("start") = 0.0,
                  "A linear rise from `start` times the base rate in `steps` steps, then `after`.")
      .def("__call__", &LearningRate::operator(), py::arg("step"), py::arg("base"),
           "The rate of a step, counted from 0.");
}

}  // namespace

void bind_learning_rate(py::module_& module) {
  bind_rate(module);
  py::class_<DeviceLearningRateSchedule> on_device(module, "DeviceLearningRateSchedule",
                                                   "A schedule whose rates lie in a table on the device.");
  add_state(on_device);
  on_device.def(
      "state",
      [](const DeviceLearningRateSchedule& self) {
        std::vector<std::pair<std::string, at::Tensor>> pairs;
        for (const auto& [name, tensor] : self.state()) pairs.emplace_back(name, tensor);
        return pairs;
      },
      "The counter: what a step writes besides the rates.");
  py::class_<LearningRateSchedule> schedule(module, "LearningRateSchedule",
                                            "Writes the rates of an optimizer's groups, step by step.");
  schedule
      .def(py::init<const Optimizer&, LearningRate, std::vector<double>>(), py::arg("optimizer"), py::arg("rate"),
           py::arg("base_rates") = std::vector<double>())
      .def(py::init<std::vector<at::Tensor>, LearningRate, std::vector<double>>(), py::arg("scalars"), py::arg("rate"),
           py::arg("base_rates") = std::vector<double>());
  add_state(schedule);
  schedule
      .def_property_readonly("rates", &LearningRateSchedule::rates,
                             "What was written last, unrounded: one for each group.")
      .def("on_device", &LearningRateSchedule::on_device, py::arg("total_steps"),
           "The same for capture, from this step on, with a table of the rates of steps 0 to `total_steps`.");
}

}  // namespace pianola::python
