#include <bindings/bindings.hpp>

#include <pianola/schedule/schedule.hpp>

#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using Layers = std::vector<int>;
using Build = Schedule (*)(const PipelineShape&, const ScheduleOptions&);

template <Build build>
Schedule of_pipeline(int pipeline_size, int microbatches, int rank, int virtual_size, Layers layers_per_chunk) {
  return build(
      {.pipeline_size = pipeline_size, .virtual_size = virtual_size, .microbatches = microbatches, .rank = rank},
      {.layers_per_chunk = std::move(layers_per_chunk)});
}

template <Build build, typename Class>
void def_pipeline(Class& schedule, const char* name, const char* doc) {
  schedule.def_static(name, &of_pipeline<build>, py::kw_only(), py::arg("pipeline_size"), py::arg("microbatches"),
                      py::arg("rank") = 0, py::arg("virtual_size") = 1, py::arg("layers_per_chunk") = Layers(), doc);
}

}  // namespace

void bind_schedule(py::module_& module) {
  py::class_<Schedule> schedule(module, "Schedule", "The order of forwards and backwards on one rank of a pipeline.");
  schedule
      .def_static(
          "parse",
          [](const std::string& text, Layers layers) {
            return Schedule::parse(text, {.layers_per_chunk = std::move(layers)});
          },
          py::arg("text"), py::kw_only(), py::arg("layers_per_chunk") = Layers(),
          "From \"1,1,-1,-1\": c is the next forward of chunk c, counted from 1, and -c its next backward; "
          "-c-0.5 are the gradients of its weights, where they are delayed.")
      .def_static(
          "from_order",
          [](const std::vector<double>& order, Layers layers) {
            return Schedule::from_order(order, {.layers_per_chunk = std::move(layers)});
          },
          py::arg("order"), py::kw_only(), py::arg("layers_per_chunk") = Layers(),
          "From Transformer Engine's `_order`.")
      .def_property_readonly("chunks", &Schedule::chunks, "Chunks of the model on this rank.")
      .def_property_readonly("microbatches", &Schedule::microbatches, "Microbatches of one iteration.")
      .def_property_readonly("total_layers", &Schedule::total_layers, "Layers of all chunks.")
      .def("layers", &Schedule::layers, py::arg("chunk"), "Layers of a chunk, counted from 1.")
      .def("first_layer", &Schedule::first_layer, py::arg("chunk"), "How many layers the chunks before this one have.")
      .def("delays_weight_gradients", &Schedule::delays_weight_gradients, py::arg("chunk"),
           "Whether its backwards leave the gradients of weights for later.")
      .def("depth", &Schedule::depth, py::arg("chunk"), "Microbatches of a chunk that are in flight at once.")
      .def("__str__", &Schedule::to_string)
      .def("__repr__", [](const Schedule& self) { return "pianola.Schedule.parse('" + self.to_string() + "')"; })
      .def(
          "__eq__", [](const Schedule& self, const Schedule& other) { return self == other; }, py::is_operator());
  def_pipeline<&Schedule::gpipe>(schedule, "gpipe", "All forwards, then all backwards.");
  def_pipeline<&Schedule::one_f_one_b>(schedule, "one_f_one_b", "One forward, one backward in turn (1F1B).");
  def_pipeline<&Schedule::interleaved>(schedule, "interleaved", "Interleaved 1F1B: several chunks on each rank.");
}

}  // namespace pianola::python
