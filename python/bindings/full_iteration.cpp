#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_call.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/training/iteration_cache.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using callable::SignatureCache;
using training::key_of;

FullIterationOptions make_iteration_options(int warmup, int capacity, OutputPolicy output, bool eager_fallback,
                                            const py::object& on_fallback, std::vector<at::Generator> generators,
                                            std::size_t memory_limit, bool plan_memory, bool accept_capture_path,
                                            const Lanes& branches, const std::optional<ParallelOptions>& parallel,
                                            bool strict, const std::optional<std::pair<c10::Device, PoolId>>& pool,
                                            const std::string& mode) {
  return {.warmup = warmup,
          .capacity = capacity,
          .output = output,
          .eager_fallback = eager_fallback,
          .on_fallback = make_listener(on_fallback),
          .generators = std::move(generators),
          .memory_limit = memory_limit,
          .plan_memory = plan_memory,
          .accept_capture_path = accept_capture_path,
          .branches = branches_of(branches),
          .parallel = parallel.value_or(ParallelOptions()),
          .check = strict ? CheckMode::strict : CheckMode::standard,
          .pool = pool ? GraphPoolRef(GraphPool(pool->first, pool->second)) : GraphPoolRef(),
          .mode = capture_mode(mode)};
}

// The tensors of one call, for as long as it lasts.
struct CallTensors {
  CallTensors(const py::args& copied, std::vector<at::Tensor> fixed_tensors)
      : copies(tensors_of(copied)), fixed(std::move(fixed_tensors)) {}
  [[nodiscard]] callable::CallInputs inputs() const { return {.copied = copies, .fixed = fixed}; }

  std::vector<at::Tensor> copies;
  std::vector<at::Tensor> fixed;
};

// None where the call ran eagerly; else the captured function and its results, or None instead of these where they are
// the tensors of before, as its `unchanging` says.
py::object run_iteration(SignatureCache& cache, Stage stage, std::int64_t key, const py::object& call,
                         std::vector<at::Tensor> fixed, const py::args& copied) {
  PythonCall python_call(call, py::none());
  const CallTensors tensors(copied, std::move(fixed));
  std::optional<SignatureCache::Result> result;
  {
    const WithoutGil release;
    result = cache.run(key_of(stage, key), tensors.inputs(), python_call);
  }
  if (!result) return py::none();
  const py::object structure = static_cast<const HeldObject*>(result->structure.get())->get();
  const bool is_known = result->is_static() && !structure.attr("unchanging").is_none();
  const py::object leaves = is_known ? py::object(py::none()) : py::object(to_python(result->leaves()));
  return py::make_tuple(structure, leaves, result->is_static());
}

void capture_iteration(SignatureCache& cache, Stage stage, std::int64_t key, const py::object& call,
                       std::vector<at::Tensor> fixed) {
  PythonCall python_call(call, py::none());
  const CallTensors tensors(py::args(), std::move(fixed));
  const WithoutGil release;
  cache.capture(key_of(stage, key), tensors.inputs(), python_call);
}

bool is_due(SignatureCache& cache, Stage stage, std::int64_t key, std::vector<at::Tensor> fixed) {
  const CallTensors tensors(py::args(), std::move(fixed));
  const WithoutGil release;
  return cache.is_due(key_of(stage, key), tensors.inputs());
}

void refuse(SignatureCache& cache, Stage stage, std::int64_t key, const std::string& reason,
            std::vector<at::Tensor> fixed, const py::args& copied) {
  const CallTensors tensors(copied, std::move(fixed));
  const WithoutGil release;
  cache.refuse(key_of(stage, key), tensors.inputs(), reason);
}

void bind_iteration_info(py::module_& module) {
  py::class_<IterationInfo>(module, "IterationInfo", "One signature of a stage of a FullIteration.")
      .def_property_readonly(
          "stage", [](const IterationInfo& self) { return std::string(in_words(self.stage)); },
          "\"training\" or \"validation\".")
      .def_readonly("signature", &IterationInfo::signature,
                    "Microbatches of these shapes: \"Long[4, 64] cuda:0, with gradients\".")
      .def_property_readonly(
          "state", [](const IterationInfo& self) { return std::string(to_string(self.state)); },
          "\"warming up\", \"captured\" or \"eager\".")
      .def_readonly("eager_calls", &IterationInfo::eager_calls, "Iterations that ran eagerly, warm-up included.")
      .def_readonly("replays", &IterationInfo::replays, "Iterations that were replayed.")
      .def_readonly("recaptures", &IterationInfo::recaptures, "Captures after the first.")
      .def_property_readonly(
          "reason", [](const IterationInfo& self) { return in_python_words(self.reason); },
          "Why it stays eager, or why its latest capture was dropped.")
      .def_readonly("branches", &IterationInfo::branches, "What `branches` came to.");
  py::class_<FullIterationInfo>(module, "FullIterationInfo", "What a FullIteration knows and keeps.")
      .def_readwrite("signatures", &FullIterationInfo::signatures,
                     "Training first; of a stage, most recently called first.")
      .def_readwrite("evictions", &FullIterationInfo::evictions, "Signatures that lost their graph to others.")
      .def_readwrite("pool_bytes", &FullIterationInfo::pool_bytes, "Of the pool that all graphs share.")
      .def_readwrite("input_bytes", &FullIterationInfo::input_bytes,
                     "Of tensors that graphs copy inputs into; memory that several share counts once.")
      .def_readwrite("unfollowed", &FullIterationInfo::unfollowed,
                     "What it reads on the host, and is not compared at each call.")
      .def_readwrite("compiled", &FullIterationInfo::compiled, "What became of compiling its modules.")
      .def("report", &FullIterationInfo::report, "The same as a report.")
      .def("__str__", [](const FullIterationInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_full_iteration(py::module_& module) {
  py::enum_<Stage>(module, "Stage", "Which of its two functions an iteration runs.")
      .value("training", Stage::training, "The step that trains.")
      .value("validation", Stage::validation, "The step that validates.");
  bind_iteration_info(module);
  py::class_<FullIterationOptions>(module, "FullIterationOptions",
                                   "When a FullIteration captures, and how much it keeps.")
      .def(py::init(&make_iteration_options), py::kw_only(), py::arg("warmup"), py::arg("capacity"), py::arg("output"),
           py::arg("eager_fallback"), py::arg("on_fallback"), py::arg("generators"), py::arg("memory_limit"),
           py::arg("plan_memory"), py::arg("accept_capture_path"), py::arg("branches"), py::arg("parallel"),
           py::arg("strict"), py::arg("pool"), py::arg("mode"));
  module.def(
      "iteration_warmup", [](const CudaGraphConfig& config) { return options_from(config).warmup; }, py::arg("config"),
      "What a configuration says of full iterations; it is checked first.");
  py::class_<SignatureCache>(module, "IterationCache", "The graphs of whole iterations, by stage and signature.")
      .def(py::init([](const FullIterationOptions& options) {
             return std::make_unique<SignatureCache>(training::cache_options(options));
           }),
           py::arg("options"))
      .def("run", &run_iteration, py::arg("stage"), py::arg("key"), py::arg("call"), py::arg("fixed"),
           "What was captured, its tensors, and whether they are the same each time; None where the call ran eagerly.")
      .def("capture", &capture_iteration, py::arg("stage"), py::arg("key"), py::arg("call"), py::arg("fixed"),
           "Captures a call that was never run; nothing where it has a graph.")
      .def("refuse", &refuse, py::arg("stage"), py::arg("key"), py::arg("reason"), py::arg("fixed"),
           "Keeps iterations of this key with such inputs eager; raises where there is no eager_fallback.")
      .def("is_due", &is_due, py::arg("stage"), py::arg("key"), py::arg("fixed"),
           "Whether the next run of this call is going to capture it.")
      .def(
          "reset", [](SignatureCache& cache, Stage stage) { cache.reset(key_of(stage, 0).function); }, py::arg("stage"),
          py::call_guard<WithoutGil>(), "Forgets the stage's signatures and drops their graphs.")
      .def("info", &training::info_of, py::call_guard<WithoutGil>(), "What is known and kept.");
}

}  // namespace pianola::python
