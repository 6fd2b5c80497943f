#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_function.hpp>

#include <pianola/graph/account/captured_memory.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/account/memory_watch.hpp>
#include <pianola/graph/account/process_memory.hpp>
#include <pianola/graph/bucket_forecast.hpp>
#include <pianola/graph/memory_forecast.hpp>
#include <pianola/graph/scope_forecast.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

MemoryForecast predict(const py::function& step, const c10::Device& device, int warmup) {
  const std::function<void()> action = make_action(step);
  const WithoutGil release;
  return predict_memory(action, device, warmup);
}

BucketForecast predict_each(const py::function& step, const std::vector<std::string>& names,
                            const std::vector<std::vector<at::Tensor>>& inputs, const c10::Device& device, int warmup) {
  const auto run = [held = HeldObject(step)](std::size_t bucket) {
    const WithGil gil;
    (void)call_python(held.get(), py::make_tuple(bucket));
  };
  const WithoutGil release;
  return predict_buckets(run, names, device, warmup, inputs);
}

template <typename T>
void bind_report(py::class_<T>& made) {
  made.def(
          "to_text", [](const T& self) { return self.report().to_text(); }, "For people.")
      .def(
          "to_json", [](const T& self) { return self.report().to_json(); }, "One JSON object.")
      .def("__str__", [](const T& self) { return self.report().to_text(); });
}

void bind_bucket_forecast(py::module_& module) {
  py::class_<BucketForecast> forecast(module, "BucketForecast",
                                      "What graphs of a step would take, of one bucket each, that never run at once.");
  forecast
      .def_property_readonly(
          "device", [](const BucketForecast& self) { return self.device; }, "Where the step ran.")
      .def_readonly("names", &BucketForecast::names, "Of the buckets.")
      .def_readonly("buckets", &BucketForecast::buckets, "Of each alone.")
      .def_readonly("pools_bytes", &BucketForecast::pools, "Of pools of their own, all together.")
      .def_readonly("shared_bytes", &BucketForecast::shared, "Of one pool for all, made with `plan_memory`.")
      .def_readonly("input_bytes", &BucketForecast::inputs,
                    "Of static inputs that all graphs share: of each the largest.")
      .def_readonly("copied_bytes", &BucketForecast::copied, "The most that one of the captures copies aside.")
      .def_readonly("executable_bytes", &BucketForecast::executables, "Of the executable graphs, about.")
      .def_readonly("free_bytes", &BucketForecast::free, "What the driver had left for pools; None on the CPU.")
      .def_readonly("cached_bytes", &BucketForecast::cached,
                    "What torch's allocator held unused: nothing for pools, but for the copies.")
      .def_property_readonly("fits", &BucketForecast::fits,
                             "Whether captures into one pool that plans find room; None on the CPU.")
      .def_property_readonly("fits_apart", &BucketForecast::fits_apart, "Whether those into pools of their own do.")
      .def_property_readonly("verdict", &BucketForecast::verdict, "The same in a sentence.");
  bind_report(forecast);
  module.def("predict_buckets", &predict_each, py::arg("step"), py::arg("names"), py::arg("inputs"), py::kw_only(),
             py::arg("device"), py::arg("warmup"),
             "Runs a step for each bucket, and tells what graphs of it would take.");
}

ScopeForecast predict_each_scope(const py::function& step, std::vector<at::Tensor> inputs, const c10::Device& device,
                                 int warmup, int lanes) {
  const std::function<void()> action = make_action(step);
  const WithoutGil release;
  return predict_scopes(action, device, {.warmup = warmup, .inputs = std::move(inputs), .lanes = lanes});
}

void bind_predicted_scope(py::module_& module) {
  py::class_<PredictedScope>(module, "PredictedScope", "What graphs of a scope would take.")
      .def_readonly("name", &PredictedScope::name,
                    "\"each layer\", \"forward and backward\", \"iteration without optimizer\", \"whole iteration\".")
      .def_readonly("obstacle", &PredictedScope::obstacle, "Why it cannot be told; empty where it can.")
      .def_readonly("graphs", &PredictedScope::graphs, "How many.")
      .def_readonly("pool_bytes", &PredictedScope::pool, "Of pools that torch's allocator fills.")
      .def_readonly("scratch_bytes", &PredictedScope::scratch, "Of these, what nobody needs when the scope is over.")
      .def_readonly("result_bytes", &PredictedScope::results, "What somebody does: results, gradients.")
      .def_readonly("input_bytes", &PredictedScope::inputs, "Of static inputs, outside of pools.")
      .def_readonly("copied_bytes", &PredictedScope::copied,
                    "Of outside tensors that it writes, which a capture copies aside.")
      .def_readonly("executable_bytes", &PredictedScope::executable, "Of the executables, about.")
      .def_readonly("fits", &PredictedScope::fits, "Whether captures find room; None on the CPU.")
      .def_readonly("verdict", &PredictedScope::verdict, "The same in a sentence.");
}

void bind_scope_forecast(py::module_& module) {
  module.def(
      "model_scope", [](const std::string& name) { return std::string(kModelScope) + name; }, py::arg("name"),
      "The user scope by which predict_scopes() knows a model.");
  module.def(
      "layer_scope", [](const std::string& name) { return std::string(kLayerScope) + name; }, py::arg("name"),
      "The same of a layer.");
  bind_predicted_scope(module);
  py::class_<LanesForecast>(module, "LanesForecast", "What lanes of a graph may add at most: a bound.")
      .def_readonly("lanes", &LanesForecast::lanes, "How many.")
      .def_readonly("workspace_bytes", &LanesForecast::workspaces, "Of cuBLAS; 0 on the CPU.")
      .def_readonly("reuse_bytes", &LanesForecast::reuse, "If nothing that the step frees were used again.")
      .def_readonly("at_most_bytes", &LanesForecast::at_most, "Both, but no more than the limit of `ParallelOptions`.");
  py::class_<ScopeForecast> forecast(module, "ScopeForecast", "A step's memory by what of it is in graphs.");
  forecast
      .def_property_readonly(
          "device", [](const ScopeForecast& self) { return self.device; }, "Where the step ran.")
      .def_readonly("scopes", &ScopeForecast::scopes, "From the least in graphs to the most; always the same four.")
      .def_readonly("lanes", &ScopeForecast::lanes, "Of a graph of the whole iteration.")
      .def_readonly("free_bytes", &ScopeForecast::free, "What the driver had left for pools; None on the CPU.")
      .def_readonly("cached_bytes", &ScopeForecast::cached,
                    "What torch's allocator held unused: nothing for pools, but for inputs and copies.");
  bind_report(forecast);
  module.def("predict_scopes", &predict_each_scope, py::arg("step"), py::arg("inputs"), py::kw_only(),
             py::arg("device"), py::arg("warmup"), py::arg("lanes"),
             "Runs a step, and tells what graphs of each scope would take.");
}

void bind_pool_memory(py::module_& module) {
  py::class_<ExecutableMemory>(module, "ExecutableMemory", "What executable graphs take beside their pools.")
      .def_readonly("device", &ExecutableMemory::device,
                    "Bytes of the device, as the driver counted them when they were made.")
      .def_readonly("host", &ExecutableMemory::host, "By how much the process grew on the host meanwhile.");
  py::class_<PoolMemory>(module, "PoolMemory",
                         "What a pool has: `bytes` is `held`, `scratch` and `fragments` together.")
      .def_readonly("id", &PoolMemory::id, "torch's name for it.")
      .def_readonly("bytes", &PoolMemory::bytes, "On the device; where it sleeps, what it will have again.")
      .def_readonly("held", &PoolMemory::held, "In blocks that somebody holds: results, gradients.")
      .def_readonly("scratch", &PoolMemory::scratch, "Of nobody between replays, and written by them.")
      .def_readonly("fragments", &PoolMemory::fragments, "No graph of the pool that has a trace ever had it.")
      .def_readonly("workspaces", &PoolMemory::workspaces, "Of cuBLAS, for its graphs.")
      .def_readonly("graphs", &PoolMemory::graphs, "That share it.")
      .def_readonly("executables", &PoolMemory::executables, "Of these graphs.")
      .def_readonly("is_asleep", &PoolMemory::is_asleep, "Between suspend() and resume().");
}

void bind_graph_memory(py::module_& module) {
  py::class_<GraphMemory> graph(module, "GraphMemory", "What a captured graph has of a device's memory.");
  graph
      .def_property_readonly(
          "device", [](const GraphMemory& self) { return self.device; }, "Where it lies.")
      .def_readonly("number", &GraphMemory::number, "Of `memory_of_graphs()`: of its capture in this process, from 1.")
      .def_readonly("pool", &GraphMemory::pool, "Its pool, with what other graphs have there.")
      .def_readonly("own_bytes", &GraphMemory::own, "Of the pool, that its replays write or its results lie in.")
      .def_readonly("shared_bytes", &GraphMemory::shared, "Of these, that other graphs of the pool have as well.")
      .def_readonly("planned_bytes", &GraphMemory::planned,
                    "Of the pool, laid out by plans; a region that graphs share counts in full.")
      .def_readonly("input_bytes", &GraphMemory::inputs, "Of the tensors that replays fill with new values.")
      .def_readonly("shared_input_bytes", &GraphMemory::shared_inputs,
                    "Of these, in memory_of_graphs(): bytes that inputs of earlier captures have as well.")
      .def_readonly("retained_bytes", &GraphMemory::retained,
                    "Of tensors from outside that it keeps alive, parameters and inputs among them.")
      .def_readonly("lane_workspace_bytes", &GraphMemory::lane_workspaces, "Of cuBLAS, for lanes (`branches`).")
      .def_readonly("kept_for_lanes_bytes", &GraphMemory::kept_for_lanes,
                    "The most of the pool that was free at a time, and kept from reuse for lanes.")
      .def_readonly("executable", &GraphMemory::executable,
                    "Its executable; nothing where another graph that uses it counts it.")
      .def_readonly("shares_executable", &GraphMemory::shares_executable,
                    "Whether other graphs use it, too: of a pool with `share_executables`.")
      .def_readonly("blocks", &GraphMemory::blocks, "That the recording was handed out.")
      .def_readonly("handed_out_bytes", &GraphMemory::handed_out, "Of all these blocks.")
      .def_readonly("at_most_bytes", &GraphMemory::at_most, "In use at a time, by the recording.")
      .def_readonly("left_bytes", &GraphMemory::left, "In use when it was over.")
      .def_readonly("peak_place", &GraphMemory::peak_place, "The operation in which most was in use.")
      .def_readonly("at_peak", &GraphMemory::at_peak, "What was in use there by line, the largest first.")
      .def("to_html", &GraphMemory::to_html, "A page that needs nothing else: who lives when, and where in the pool.");
  bind_report(graph);
  module.def(
      "memory_of_graphs",
      [](const c10::Device& device) {
        const WithoutGil release;
        return memory_of_graphs(device);
      },
      py::arg("device"), "Of each captured graph on the device.");
}

void bind_process_memory(py::module_& module) {
  py::class_<WatchedMemory>(module, "WatchedMemory",
                            "Memory of a device outside of torch's allocator, and what took it.")
      .def_readonly("what", &WatchedMemory::what, "\"context\", \"cuBLAS\", \"kernels\", ...")
      .def_readonly("bytes", &WatchedMemory::bytes, "By how much the driver had less when that was over.")
      .def_readonly("first", &WatchedMemory::first, "The operation that took the first of it.");
  py::class_<ProcessMemory> process(module, "ProcessMemory", "Who has what of a device's memory, in this process.");
  process
      .def_property_readonly(
          "device", [](const ProcessMemory& self) { return self.device; }, "Which device.")
      .def_readonly("used_bytes", &ProcessMemory::used, "As the driver says, by all processes; None on the CPU.")
      .def_readonly("total_bytes", &ProcessMemory::total, "That the device has.")
      .def_readonly("tensor_bytes", &ProcessMemory::tensors,
                    "Of torch's allocator outside of graphs' pools, what somebody holds.")
      .def_readonly("workspace_bytes", &ProcessMemory::workspaces, "Of these, cuBLAS's for graphs.")
      .def_readonly("returnable_bytes", &ProcessMemory::returnable,
                    "What nobody holds, in whole segments: `torch.cuda.empty_cache()` gives it back.")
      .def_readonly("piece_bytes", &ProcessMemory::pieces, "What nobody holds, beside what somebody does.")
      .def_readonly("pools", &ProcessMemory::pools, "Of Pianola's graphs.")
      .def_readonly("other_pool_bytes", &ProcessMemory::other_pools, "Of pools of others.")
      .def_readonly("executables", &ProcessMemory::executables, "Of Pianola's graphs.")
      .def_readonly("watched", &ProcessMemory::watched,
                    "What `pianola.watch_memory()` saw; nothing where there was none.")
      .def_property_readonly("rest_bytes", &ProcessMemory::rest, "In use, and in none of these.");
  bind_report(process);
  module.def(
      "process_memory",
      [](const c10::Device& device) {
        const WithoutGil release;
        return process_memory(device);
      },
      py::arg("device"), "The account of now.");
  py::class_<MemoryWatch>(module, "MemoryWatch", "Finds out who takes memory outside of torch's allocator.")
      .def(py::init<c10::Device>(), py::arg("device"));
}

void bind_captured_memory(py::module_& module) {
  py::class_<CapturedMemory> captured(module, "CapturedMemory", "What was told of a graph, and what it then had.");
  captured
      .def(py::init([](MemoryForecast forecast, GraphMemory graph, ProcessMemory process) {
             return std::make_unique<CapturedMemory>(
                 CapturedMemory{std::move(forecast), std::move(graph), std::move(process)});
           }),
           py::arg("forecast"), py::arg("graph"), py::arg("process"))
      .def("to_html", &CapturedMemory::to_html, "The graph's page.");
  bind_report(captured);
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<MemoryUser>(module, "MemoryUser", "What one line of a step has in use where most is.")
      .def_readonly("place", &MemoryUser::place, "The operation, and the line that called it.")
      .def_readonly("blocks", &MemoryUser::blocks, "How many blocks.")
      .def_readonly("bytes", &MemoryUser::bytes, "Their bytes.");
  py::class_<MemoryForecast> forecast(module, "MemoryForecast",
                                      "What a graph of a step would take, told before there is one.");
  forecast
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
      .def("to_html", &MemoryForecast::to_html,
           "A page that needs nothing else: who lives when, and where a plan puts it.");
  bind_report(forecast);
  module.def("predict_memory", &predict, py::arg("step"), py::kw_only(), py::arg("device"), py::arg("warmup"),
             "Runs a step, and tells what a graph of it would take.");
  bind_bucket_forecast(module);
  bind_scope_forecast(module);
  bind_pool_memory(module);
  bind_graph_memory(module);
  bind_process_memory(module);
  bind_captured_memory(module);
}

}  // namespace pianola::python
