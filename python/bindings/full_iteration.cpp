#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_call.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/training/iteration_bank.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using training::IterationBank;

std::function<void(Stage)> make_follower(const py::object& function) {
  if (function.is_none()) return {};
  return [held = HeldObject(function)](Stage stage) {
    const WithGil gil;
    (void)call_python(held.get(), py::make_tuple(std::string(in_words(stage))));
  };
}

FullIterationOptions make_iteration_options(int warmup, int capacity, OutputPolicy output, bool eager_fallback,
                                            const py::object& on_fallback, std::vector<at::Generator> generators,
                                            const py::object& after_iteration, bool accept_capture_path, int branches,
                                            const std::optional<ParallelOptions>& parallel, bool strict,
                                            const std::optional<std::pair<c10::Device, PoolId>>& pool,
                                            const std::string& mode) {
  return {.warmup = warmup,
          .capacity = capacity,
          .output = output,
          .eager_fallback = eager_fallback,
          .on_fallback = make_listener(on_fallback),
          .generators = std::move(generators),
          .after_iteration = make_follower(after_iteration),
          .accept_capture_path = accept_capture_path,
          .branches = branches,
          .parallel = parallel.value_or(ParallelOptions()),
          .check = strict ? CheckMode::strict : CheckMode::standard,
          .pool = pool ? GraphPoolRef(GraphPool(pool->first, pool->second)) : GraphPoolRef(),
          .mode = capture_mode(mode)};
}

// The tensors of one call, for as long as it lasts.
struct CallTensors {
  CallTensors(const py::args& copied, std::vector<at::Tensor> fixed_tensors)
      : copies(tensors_of(copied)), fixed(std::move(fixed_tensors)) {}
  [[nodiscard]] IterationBank::Inputs inputs() const { return {.copied = copies, .fixed = fixed}; }

  std::vector<at::Tensor> copies;
  std::vector<at::Tensor> fixed;
};

// None where the call ran eagerly; else the captured function and its results, or None instead of these where they are
// the tensors of before, as its `unchanging` says.
py::object run_iteration(IterationBank& bank, Stage stage, std::int64_t key, const py::object& call,
                         std::vector<at::Tensor> fixed, const py::args& copied) {
  PythonCall python_call(call, py::none());
  const CallTensors tensors(copied, std::move(fixed));
  std::optional<IterationBank::Result> result;
  {
    const WithoutGil release;
    result = bank.run(stage, key, tensors.inputs(), python_call);
  }
  if (!result) return py::none();
  const py::object structure = static_cast<const HeldObject*>(result->structure.get())->get();
  const bool is_known = result->is_static() && !structure.attr("unchanging").is_none();
  const py::object leaves = is_known ? py::object(py::none()) : py::object(to_python(result->leaves()));
  return py::make_tuple(structure, leaves, result->is_static());
}

void capture_iteration(IterationBank& bank, Stage stage, std::int64_t key, const py::object& call,
                       std::vector<at::Tensor> fixed) {
  PythonCall python_call(call, py::none());
  const CallTensors tensors(py::args(), std::move(fixed));
  const WithoutGil release;
  bank.capture(stage, key, tensors.inputs(), python_call);
}

bool is_due(IterationBank& bank, Stage stage, std::int64_t key, std::vector<at::Tensor> fixed) {
  return bank.is_due(stage, key, CallTensors(py::args(), std::move(fixed)).inputs());
}

void refuse(IterationBank& bank, Stage stage, std::int64_t key, const std::string& reason,
            std::vector<at::Tensor> fixed, const py::args& copied) {
  const CallTensors tensors(copied, std::move(fixed));
  bank.refuse(stage, key, tensors.inputs(), reason);
}

void bind_iteration_info(py::module_& module) {
  py::class_<IterationInfo>(module, "IterationInfo", "One signature of a stage of a FullIteration.")
      .def_property_readonly("stage", [](const IterationInfo& self) { return std::string(in_words(self.stage)); })
      .def_readonly("signature", &IterationInfo::signature)
      .def_property_readonly("state", [](const IterationInfo& self) { return std::string(to_string(self.state)); })
      .def_readonly("eager_calls", &IterationInfo::eager_calls)
      .def_readonly("replays", &IterationInfo::replays)
      .def_readonly("recaptures", &IterationInfo::recaptures)
      .def_property_readonly("reason", [](const IterationInfo& self) { return in_python_words(self.reason); })
      .def_readonly("branches", &IterationInfo::branches);
  py::class_<FullIterationInfo>(module, "FullIterationInfo", "What a FullIteration knows and keeps.")
      .def_readonly("signatures", &FullIterationInfo::signatures)
      .def_readonly("evictions", &FullIterationInfo::evictions)
      .def_readonly("pool_bytes", &FullIterationInfo::pool_bytes)
      .def_readwrite("unfollowed", &FullIterationInfo::unfollowed)
      .def("report", &FullIterationInfo::report)
      .def("__str__", [](const FullIterationInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_full_iteration(py::module_& module) {
  py::enum_<Stage>(module, "Stage").value("training", Stage::training).value("validation", Stage::validation);
  bind_iteration_info(module);
  py::class_<FullIterationOptions>(module, "FullIterationOptions")
      .def(py::init(&make_iteration_options), py::kw_only(), py::arg("warmup"), py::arg("capacity"), py::arg("output"),
           py::arg("eager_fallback"), py::arg("on_fallback"), py::arg("generators"), py::arg("after_iteration"),
           py::arg("accept_capture_path"), py::arg("branches"), py::arg("parallel"), py::arg("strict"), py::arg("pool"),
           py::arg("mode"));
  module.def(
      "iteration_warmup", [](const CudaGraphConfig& config) { return options_from(config).warmup; }, py::arg("config"));
  py::class_<IterationBank>(module, "IterationBank")
      .def(py::init<FullIterationOptions>(), py::arg("options"))
      .def("run", &run_iteration, py::arg("stage"), py::arg("key"), py::arg("call"), py::arg("fixed"))
      .def("capture", &capture_iteration, py::arg("stage"), py::arg("key"), py::arg("call"), py::arg("fixed"))
      .def("refuse", &refuse, py::arg("stage"), py::arg("key"), py::arg("reason"), py::arg("fixed"))
      .def("is_due", &is_due, py::arg("stage"), py::arg("key"), py::arg("fixed"))
      .def("follow", &IterationBank::follow, py::arg("stage"))
      .def("reset", &IterationBank::reset, py::arg("stage"))
      .def("info", &IterationBank::info);
}

}  // namespace pianola::python
