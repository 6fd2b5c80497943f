#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_error.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/graph/graph.hpp>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

void capture_graph(Graph& graph, const py::function& step, const CaptureOptions& options) {
  const HeldObject held(step);
  const WithoutGil release;
  graph.capture(
      [&held] {
        const WithGil acquire;
        try {
          or_park([&] { (void)held.get()(); });
        } catch (const py::error_already_set& raised) {
          std::rethrow_exception(as_cpp_error(raised));
        }
      },
      options);
}

// Hands a Python exception to the scope; comes back by throwing the explanation, or the exception itself.
void fail(CaptureScope& scope, const py::object& exception) {
  const std::exception_ptr error = std::make_exception_ptr(PythonError(exception));
  const WithoutGil release;
  scope.fail(error);
}

void replay(Graph& graph, const py::args& sources) {
  if (sources.empty()) {
    const WithoutGil release;
    return graph.replay();
  }
  const std::vector<at::Tensor> tensors = tensors_of(sources);
  const WithoutGil release;
  graph.replay(tensors);
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void bind_capture_options(py::module_& module) {
  py::class_<CaptureOptions>(module, "CaptureOptions")
      .def(py::init(&make_capture_options), py::kw_only(), py::arg("device"), py::arg("warmup"), py::arg("pool"),
           py::arg("generators"), py::arg("inputs"), py::arg("branches"), py::arg("parallel"), py::arg("mode"),
           py::arg("restore"), py::arg("trace"), py::arg("accept_capture_path"), py::arg("instantiate"),
           py::arg("allow_empty"), py::arg("stream"), py::arg("check"), py::arg("names"));
}

void bind_pool(py::module_& module) {
  py::class_<GraphPool>(module, "GraphPool")
      .def(py::init<c10::Device>(), py::arg("device"))
      .def_property_readonly("id", &GraphPool::id)
      .def_property_readonly("device", &GraphPool::device)
      .def("bytes", &GraphPool::bytes);
  module.def("new_pool_id", &GraphPool::new_id);
}

void bind_graph_info(py::module_& module) {
  py::class_<GraphInfo>(module, "GraphInfo", "What a captured graph holds and what making it cost.")
      .def_readonly("backend", &GraphInfo::backend)
      .def_readonly("nodes", &GraphInfo::nodes)
      .def_readonly("types", &GraphInfo::types)
      .def_readonly("kernels", &GraphInfo::kernels)
      .def_readonly("edges", &GraphInfo::edges)
      .def_readonly("operations", &GraphInfo::operations)
      .def_readonly("pool_bytes", &GraphInfo::pool_bytes)
      .def_readonly("executable_bytes", &GraphInfo::executable_bytes)
      .def_readonly("retained_bytes", &GraphInfo::retained_bytes)
      .def_readonly("draws_random_numbers", &GraphInfo::draws_random_numbers)
      .def_property_readonly("warmup_us", [](const GraphInfo& self) { return self.warmup_time.count(); })
      .def_property_readonly("capture_us", [](const GraphInfo& self) { return self.capture_time.count(); })
      .def_property_readonly("instantiate_us", [](const GraphInfo& self) { return self.instantiate_time.count(); })
      .def_readonly("warnings", &GraphInfo::warnings)
      .def_readonly("branches", &GraphInfo::branches)
      .def("report", &GraphInfo::report)
      .def("__str__", [](const GraphInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_graph(py::module_& module) {
  bind_capture_options(module);
  bind_pool(module);
  bind_graph_info(module);
  py::class_<Graph>(module, "Graph")
      .def(py::init<c10::Device>(), py::arg("device"))
      .def("capture", &capture_graph, py::arg("step"), py::arg("options"))
      .def("replay", &replay)
      .def("instantiate", &Graph::instantiate, NoGil())
      .def("reset", &Graph::reset, NoGil())
      .def_property_readonly("captured", &Graph::captured)
      .def_property_readonly("device", &Graph::device)
      .def("pool_id", [](const Graph& self) { return self.pool().id(); })
      .def("info", &Graph::info, NoGil())
      .def("raw_executable", [](const Graph& self) { return address(self.raw_executable()); })
      .def("raw_graph", [](const Graph& self) { return address(self.raw_graph()); })
      .def(
          "dump_dot", [](const Graph& self, const std::string& file) { self.dump_dot(file); }, py::arg("file"))
      .def(
          "dump_lanes", [](const Graph& self, const std::string& file) { self.dump_lanes(file); }, py::arg("file"));
  py::class_<CaptureScope>(module, "CaptureScope")
      .def(py::init<Graph&, CaptureOptions>(), py::arg("graph"), py::arg("options"), py::keep_alive<1, 2>(), NoGil())
      .def("end", &CaptureScope::end, NoGil())
      .def("fail", &fail, py::arg("exception"));
  module.def("is_recording", &is_recording);
}

}  // namespace pianola::python
