#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/python_function.hpp>

#include <pianola/graph/memory_forecast.hpp>

#include <functional>
#include <string>

namespace pianola::python {
namespace {

MemoryForecast predict(const py::function& step, const c10::Device& device, int warmup) {
  const std::function<void()> action = make_action(step);
  const WithoutGil release;
  return predict_memory(action, device, warmup);
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<MemoryUser>(module, "MemoryUser", "What one line of a step has in use where most is.")
      .def_readonly("place", &MemoryUser::place, "The operation, and the line that called it.")
      .def_readonly("blocks", &MemoryUser::blocks, "How many blocks.")
      .def_readonly("bytes", &MemoryUser::bytes, "Their bytes.");
  py::class_<MemoryForecast>(module, "MemoryForecast", "What a graph of a step would take, told before there is one.")
      .def_property_readonly(
          "device", [](const MemoryForecast& self) { return self.device; }, "Where the step ran.")
      .def_readonly("operations", &MemoryForecast::operations, "Of a run.")
      .def_readonly("blocks", &MemoryForecast::blocks, "That a run was handed out.")
      .def_readonly("handed_out_bytes", &MemoryForecast::handed_out, "Of all these blocks.")
      .def_readonly("bound_bytes", &MemoryForecast::bound, "The most in use at a time: no pool holds the step in less.")
      .def_readonly("pool_bytes", &MemoryForecast::pool, "Of a pool that torch's allocator fills.")
      .def_readonly("planned_bytes", &MemoryForecast::planned,
                    "Of a pool whose blocks lie where a plan of all their lives puts them.")
      .def_readonly("left_bytes", &MemoryForecast::left, "In use when the step is over.")
      .def_readonly("copied_bytes", &MemoryForecast::copied,
                    "Of outside tensors that the step writes, which a capture copies aside and puts back.")
      .def_readonly("executable_bytes", &MemoryForecast::executable, "Of the executable graph, about.")
      .def_readonly("free_bytes", &MemoryForecast::free, "What the driver had left for a pool; None on the CPU.")
      .def_readonly("cached_bytes", &MemoryForecast::cached,
                    "What torch's allocator held unused: nothing for a pool, but for the copies.")
      .def_readonly("peak_place", &MemoryForecast::peak_place, "The operation in which most is in use.")
      .def_readonly("at_peak", &MemoryForecast::at_peak, "What is in use there by line, the largest first.")
      .def_property_readonly("fits", &MemoryForecast::fits, "Whether a capture finds room; None on the CPU.")
      .def_property_readonly("verdict", &MemoryForecast::verdict, "The same in a sentence.")
      .def(
          "to_text", [](const MemoryForecast& self) { return self.report().to_text(); }, "For people.")
      .def(
          "to_json", [](const MemoryForecast& self) { return self.report().to_json(); }, "One JSON object.")
      .def("to_html", &MemoryForecast::to_html,
           "A page that needs nothing else: who lives when, and where a plan puts it.")
      .def("__str__", [](const MemoryForecast& self) { return self.report().to_text(); });
  module.def("predict_memory", &predict, py::arg("step"), py::kw_only(), py::arg("device"), py::arg("warmup"),
             "Runs a step, and tells what a graph of it would take.");
}

}  // namespace pianola::python
