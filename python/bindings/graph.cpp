#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_error.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/process_groups.hpp>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

// Calls a Python function in place of a C++ one.
class StepOf {
 public:
  explicit StepOf(const py::function& step) : held_(step) {}
  void operator()() const {
    const WithGil acquire;
    try {
      or_park([&] { (void)held_.get()(); });
    } catch (const py::error_already_set& raised) {
      std::rethrow_exception(as_cpp_error(raised));
    }
  }

 private:
  HeldObject held_;
};

void capture_graph(Graph& graph, const py::function& step, const CaptureOptions& options) {
  const StepOf held(step);
  const WithoutGil release;
  graph.capture(std::ref(held), options);
}

void update_graph(Graph& graph, const py::function& step, const CaptureOptions& options) {
  const StepOf held(step);
  const WithoutGil release;
  graph.update(std::ref(held), options);
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
  py::class_<CaptureOptions>(module, "CaptureOptions", "How a graph warms up, records and cleans up.")
      .def(py::init(&make_capture_options), py::kw_only(), py::arg("device"), py::arg("warmup"), py::arg("pool"),
           py::arg("generators"), py::arg("inputs"), py::arg("branches"), py::arg("parallel"), py::arg("mode"),
           py::arg("restore"), py::arg("trace"), py::arg("memory_limit"), py::arg("plan_memory"),
           py::arg("accept_capture_path"), py::arg("instantiate"), py::arg("allow_empty"), py::arg("stream"),
           py::arg("check"), py::arg("names"));
}

void bind_pool(py::module_& module) {
  py::class_<GraphPool>(module, "GraphPool", "Memory that several graphs share.")
      .def(py::init([](c10::Device device, bool can_sleep, bool plan_memory, bool share_executables) {
             return std::make_unique<GraphPool>(device, GraphPool::Options{.can_sleep = can_sleep,
                                                                           .plan_memory = plan_memory,
                                                                           .share_executables = share_executables});
           }),
           py::arg("device"), py::arg("can_sleep") = false, py::arg("plan_memory") = false,
           py::arg("share_executables") = false)
      .def_property_readonly("id", &GraphPool::id, "torch's name for it.")
      .def_property_readonly("device", &GraphPool::device, "Where it lies.")
      .def("bytes", &GraphPool::bytes, "What it holds.")
      .def(
          "suspend",
          [](GraphPool& self, bool keep_executables) { return self.suspend({.keep_executables = keep_executables}); },
          py::kw_only(), py::arg("keep_executables") = true, NoGil(),
          "Gives its memory back to the driver until resume(), and returns the bytes; see `pianola.GraphPool`.")
      .def("resume", &GraphPool::resume, py::call_guard<py::gil_scoped_release>(),
           "Brings its memory back, with what tensors hold of it, and makes executables that were not kept.")
      .def_property_readonly("is_asleep", &GraphPool::is_asleep, "Between suspend() and resume().");
  py::class_<GraphPool::Allocations>(module, "PoolAllocations", "What its thread allocates lies in the pool.")
      .def(py::init<GraphPool&>(), py::arg("pool"));
  module.def(
      "suspend_all", [](bool keep_executables) { return suspend_all({.keep_executables = keep_executables}); },
      py::kw_only(), py::arg("keep_executables") = true, NoGil(),
      "Suspends each pool of the process that can sleep, as GraphPool.suspend(), and returns the bytes that went "
      "back to the driver.\n\n"
      "Raises:\n    UsageError: as GraphPool.suspend(), for the first pool that cannot; the others sleep.");
  module.def("resume_all", &resume_all, py::call_guard<py::gil_scoped_release>(),
             "Resumes each pool that sleeps.\n\nRaises:\n    OutOfMemoryError: there is no room for one; it goes on "
             "sleeping.");
  py::class_<GraphPoolFamily, std::shared_ptr<GraphPoolFamily>>(
      module, "GraphPoolFamily", "Pools whose graphs run one after the other, and share workspaces.")
      .def(py::init<>());
  module.def("new_pool_id", &GraphPool::new_id, "A name for a new pool.");
}

void bind_graph_info(py::module_& module) {
  py::class_<GraphInfo>(module, "GraphInfo", "What a captured graph holds and what making it cost.")
      .def_readonly("backend", &GraphInfo::backend, "\"cuda\" or \"tape\".")
      .def_readonly("nodes", &GraphInfo::nodes, "Nodes of the CUDA graph; on the tape, operations that a replay runs.")
      .def_readonly("types", &GraphInfo::types,
                    "Nodes by type (\"kernel\", \"memcpy\", ...); on the tape, by operator.")
      .def_readonly("kernels", &GraphInfo::kernels, "Kernel nodes; 0 on the tape.")
      .def_readonly("edges", &GraphInfo::edges, "Dependencies between nodes.")
      .def_readonly("operations", &GraphInfo::operations, "Top-level ATen operations recorded; 0 without a trace.")
      .def_readonly("pool_bytes", &GraphInfo::pool_bytes, "Bytes of the graph's pool, shared ones counted in full.")
      .def_readonly("planned_bytes", &GraphInfo::planned_bytes, "Of these, laid out by `plan_memory`.")
      .def_readonly("planned_bound_bytes", &GraphInfo::planned_bound_bytes,
                    "What no plan of the step's blocks, on its lanes, goes below; 0: not known.")
      .def_readonly(
          "executable_bytes", &GraphInfo::executable_bytes,
          "Device memory taken by the executable, outside torch's allocator; 0 where another graph that uses it "
          "counts it.")
      .def_readonly("shares_executable", &GraphInfo::shares_executable,
                    "Whether other graphs use it, too: of a pool with `share_executables`.")
      .def_readonly("retained_bytes", &GraphInfo::retained_bytes,
                    "Bytes of outside tensors that the graph keeps alive.")
      .def_readonly("draws_random_numbers", &GraphInfo::draws_random_numbers, "Whether a replay advances a generator.")
      .def_property_readonly(
          "warmup_us", [](const GraphInfo& self) { return self.warmup_time.count(); },
          "Host time of the eager runs, in microseconds.")
      .def_property_readonly(
          "agreement_us", [](const GraphInfo& self) { return self.agreement_time.count(); },
          "Host time until other ranks had stated what their graphs hold, in microseconds; 0 where it communicates "
          "with none.")
      .def_property_readonly(
          "capture_us", [](const GraphInfo& self) { return self.capture_time.count(); },
          "Host time of recording, in microseconds.")
      .def_property_readonly(
          "instantiate_us", [](const GraphInfo& self) { return self.instantiate_time.count(); },
          "Host time of making or updating the executable, in microseconds.")
      .def_readonly("warnings", &GraphInfo::warnings, "What is sound but may surprise, one sentence each.")
      .def_readonly("branches", &GraphInfo::branches, "What `branches` came to; None where it was not asked for.")
      .def("report", &GraphInfo::report, "All of it.")
      .def("__str__", [](const GraphInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_graph(py::module_& module) {
  module.def(
      "drop_graphs_of_group", &drop_graphs_of_group, py::arg("name"),
      "Drops what is captured in all graphs that communicate by this process group. Returns how many there were.");
  bind_capture_options(module);
  bind_pool(module);
  bind_graph_info(module);
  py::class_<Graph>(module, "Graph", "Work that was recorded once and is replayed with one launch.")
      .def(py::init<c10::Device>(), py::arg("device"))
      .def("capture", &capture_graph, py::arg("step"), py::arg("options"),
           "Warms up, records `step`, and puts back what that wrote.")
      .def("update", &update_graph, py::arg("step"), py::arg("options"),
           "Captures `step` in place of what the graph holds, and keeps the executable.")
      .def("replay", &replay,
           "Runs what was captured, on the current stream; copies `sources` into the graph's inputs first.")
      .def("instantiate", &Graph::instantiate, NoGil(), "Makes the executable from the captured graph as it is now.")
      .def(
          "suspend",
          [](Graph& self, bool keep_executables) { return self.suspend({.keep_executables = keep_executables}); },
          py::kw_only(), py::arg("keep_executables") = true, NoGil(),
          "GraphPool.suspend() of the graph's pool, where no other graph is in it.")
      .def("resume", &Graph::resume, NoGil(), "GraphPool.resume() of the graph's pool, where no other graph is in it.")
      .def("reset", &Graph::reset, NoGil(), "Drops the graph and its memory; the object can capture again.")
      .def_property_readonly("captured", &Graph::captured, "Whether there is something to replay.")
      .def_property_readonly("device", &Graph::device, "Where it runs.")
      .def(
          "pool_id", [](const Graph& self) { return self.pool().id(); }, "The name of the graph's pool.")
      .def("info", &Graph::info, NoGil(), "What the graph holds and what making it cost.")
      .def("memory", &Graph::memory, NoGil(),
           "What the graph has of the device's memory now, and who has what of its pool when.")
      .def(
          "raw_executable", [](const Graph& self) { return address(self.raw_executable()); },
          "The cudaGraphExec_t; 0 on the tape and before instantiate().")
      .def(
          "raw_graph", [](const Graph& self) { return address(self.raw_graph()); }, "The cudaGraph_t; 0 on the tape.")
      .def(
          "dump_dot", [](const Graph& self, const std::string& file) { self.dump_dot(file); }, py::arg("file"),
          "Writes the graph in Graphviz's language.")
      .def(
          "dump_lanes", [](const Graph& self, const std::string& file) { self.dump_lanes(file); }, py::arg("file"),
          "Draws the lanes of `branches` as an SVG picture.");
  py::class_<CaptureScope>(module, "CaptureScope", "Captures what this thread runs between construction and end().")
      .def(py::init<Graph&, CaptureOptions>(), py::arg("graph"), py::arg("options"), py::keep_alive<1, 2>(), NoGil())
      .def("end", &CaptureScope::end, NoGil(), "Ends the capture; the graph can be replayed.")
      .def("fail", &fail, py::arg("exception"),
           "Abandons the capture; raises an explanation where capturing is what caused the exception.");
  module.def("is_recording", &is_recording, "Whether a capture of this thread records; not while it warms up.");
}

}  // namespace pianola::python
