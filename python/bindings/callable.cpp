#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/python_function.hpp>
#include <bindings/tensor_hooks.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/named_gradients.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

PassHooks make_hooks(const py::dict& hooks) {
  const auto action = [&](const char* name) {
    return hooks.contains(name) ? make_action(hooks[name]) : std::function<void()>();
  };
  return {.before_forward = action("before_forward"),
          .after_forward = action("after_forward"),
          .before_backward = action("before_backward"),
          .after_backward = action("after_backward")};
}

CallableOptions make_callable_options(c10::Device device, int warmup, GradPolicy grad, OutputPolicy output, int slots,
                                      bool retain_graph, bool allow_unused_input, bool accept_capture_path,
                                      OnMismatch on_mismatch, OnOtherMode on_other_mode, OnFull on_full,
                                      std::vector<at::Tensor> through_autograd, bool delay_weight_gradients,
                                      const std::optional<Schedule>& schedule, const std::optional<PoolId>& pool,
                                      std::vector<at::Generator> generators, const Lanes& branches,
                                      const std::optional<ParallelOptions>& parallel, const std::string& mode,
                                      const py::object& pre_warmup, const py::object& post_warmup,
                                      const std::vector<py::dict>& capture_hooks,
                                      const std::vector<py::dict>& replay_hooks) {
  CallableOptions options{.warmup = warmup,
                          .grad = grad,
                          .output = output,
                          .slots = slots,
                          .retain_graph = retain_graph,
                          .allow_unused_input = allow_unused_input,
                          .accept_capture_path = accept_capture_path,
                          .on_mismatch = on_mismatch,
                          .on_other_mode = on_other_mode,
                          .on_full = on_full,
                          .through_autograd = std::move(through_autograd),
                          .delay_weight_gradients = delay_weight_gradients,
                          .schedule = schedule.value_or(Schedule()),
                          .pool = pool_of(device, pool),
                          .generators = std::move(generators),
                          .branches = branches_of(branches),
                          .parallel = parallel.value_or(ParallelOptions()),
                          .mode = capture_mode(mode),
                          .pre_warmup = make_action(pre_warmup),
                          .post_warmup = make_action(post_warmup)};
  for (const py::dict& hooks : capture_hooks) options.capture_hooks.push_back(make_hooks(hooks));
  for (const py::dict& hooks : replay_hooks) options.replay_hooks.push_back(make_hooks(hooks));
  return options;
}

std::vector<GraphedCallable> make(const std::vector<py::function>& functions, const std::vector<py::object>& modules,
                                  const std::vector<std::vector<at::Tensor>>& samples, const CallableOptions& options) {
  std::vector<Callable> callables;
  for (std::size_t i = 0; i < functions.size(); ++i) callables.push_back(make_callable(functions[i], modules[i]));
  std::vector<std::vector<c10::IValue>> values;
  for (const auto& sample : samples) values.emplace_back(sample.begin(), sample.end());
  const WithoutGil release;
  return make_graphed_callables(std::move(callables), values, options);
}

py::tuple call_graphed(GraphedCallable& callable, const py::args& arguments) {
  const std::vector<at::Tensor> inputs = tensors_of(arguments);
  std::vector<at::Tensor> outputs;
  {
    const WithoutGil release;
    outputs = callable.call(inputs);
  }
  return to_python(outputs);
}

void bind_policies(py::module_& module) {
  py::enum_<GradPolicy>(module, "GradPolicy", "How the backward pass hands out the gradients of parameters.")
      .value("accumulate", GradPolicy::accumulate, "The graph itself adds into `p.grad`.")
      .value("clone", GradPolicy::clone, "Through autograd, as copies.")
      .value("alias", GradPolicy::alias, "Through autograd, as the graph's own buffers.");
  py::enum_<OutputPolicy>(module, "OutputPolicy", "What a call returns.")
      .value("alias", OutputPolicy::alias, "The graph's own buffers, which the next call overwrites.")
      .value("clone", OutputPolicy::clone, "Copies that are the caller's.");
  py::enum_<OnMismatch>(module, "OnMismatch", "What to do with a call that differs from what was captured.")
      .value("refuse", OnMismatch::refuse, "Raise GuardError.")
      .value("eager", OnMismatch::eager, "Run the original.");
  py::enum_<OnFull>(module, "OnFull", "What to do with a call that finds every slot between forward and backward.")
      .value("refuse", OnFull::refuse, "Raise UsageError.")
      .value("overtake", OnFull::overtake, "Take the slot of the oldest call, whose backward is refused from then on.");
  py::enum_<OnOtherMode>(module, "OnOtherMode", "What to do with a call in a mode that was not captured.")
      .value("refuse", OnOtherMode::refuse, "Raise GuardError.")
      .value("eager", OnOtherMode::eager, "Run the original.")
      .value("capture", OnOtherMode::capture, "Capture it, in this call.");
}

void bind_callable_info(py::module_& module) {
  py::class_<CallableInfo>(module, "CallableInfo", "What a graphed callable holds.")
      .def_readonly("graphs", &CallableInfo::graphs,
                    "Captured graphs: forward, backward, delayed weights per slot; evaluation.")
      .def_readonly("parameters", &CallableInfo::parameters, "Parameters whose gradients the graph adds to `p.grad`.")
      .def_readonly("through_autograd", &CallableInfo::through_autograd,
                    "Parameters whose gradients go through autograd.")
      .def_readonly("delayed", &CallableInfo::delayed, "Of both, those whose gradients wait for backward_weights().")
      .def_readonly("slots", &CallableInfo::slots, "Calls that may be in flight.")
      .def_readonly("pool_bytes", &CallableInfo::pool_bytes, "Bytes of the pool, shared ones counted in full.")
      .def_readonly("static_bytes", &CallableInfo::static_bytes,
                    "Bytes of static inputs and parameter gradients, outside the pool.")
      .def_readonly("executable_bytes", &CallableInfo::executable_bytes,
                    "Device memory taken by the executables, outside torch's allocator.")
      .def_readonly("warnings", &CallableInfo::warnings, "What is sound but may surprise, one sentence each.")
      .def_readonly("branches", &CallableInfo::branches,
                    "What `branches` came to, per graph: per slot the forward and the backward pass. Empty where it "
                    "was not asked for.")
      .def("report", &CallableInfo::report, "All of it.")
      .def("__str__", [](const CallableInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_callable(py::module_& module) {
  bind_policies(module);
  bind_callable_info(module);
  py::class_<CallableOptions>(module, "CallableOptions", "How make_graphed_callables captures.")
      .def(py::init(&make_callable_options), py::kw_only(), py::arg("device"), py::arg("warmup"), py::arg("grad"),
           py::arg("output"), py::arg("slots"), py::arg("retain_graph"), py::arg("allow_unused_input"),
           py::arg("accept_capture_path"), py::arg("on_mismatch"), py::arg("on_other_mode"), py::arg("on_full"),
           py::arg("through_autograd"), py::arg("delay_weight_gradients"), py::arg("schedule"), py::arg("pool"),
           py::arg("generators"), py::arg("branches"), py::arg("parallel"), py::arg("mode"), py::arg("pre_warmup"),
           py::arg("post_warmup"), py::arg("capture_hooks"), py::arg("replay_hooks"));
  py::class_<GraphedCallable>(module, "GraphedCallable", "A captured callable: tensors in, tensors out.")
      .def("call", &call_graphed, "Replays the forward pass.")
      .def("backward_weights", &GraphedCallable::backward_weights, py::arg("microbatch") = 0, NoGil(),
           "Computes the gradients of weights that the oldest backward left for later. False: nothing was left.")
      .def("static_inputs", &GraphedCallable::static_inputs,
           "The tensors that a call copies its inputs into; passed themselves, they are not copied.")
      .def("check_current", &GraphedCallable::check_current, py::arg("output"),
           "Raises ReplayError where a later call has overwritten `output`.")
      .def_property_readonly("in_flight", &GraphedCallable::in_flight,
                             "Calls between forward and backward, or whose weights' gradients are not computed yet.")
      .def("next_microbatch", &GraphedCallable::next_microbatch, "Whose turn it is in the schedule, counted from 1.")
      .def("restart_schedule", &GraphedCallable::restart_schedule, "Forgets how far an iteration came.")
      .def("reset", &GraphedCallable::reset, NoGil(), "Drops the graphs and their memory.")
      .def(
          "pool_id", [](const GraphedCallable& self) { return self.pool().id(); }, "The name of its pool.")
      .def("info", &GraphedCallable::info, NoGil(), "What it holds.");
  module.def("make_graphed_callables", &make, py::arg("functions"), py::arg("modules"), py::arg("samples"),
             py::arg("options"),
             "Captures functions of tensors to lists of tensors; `modules` has those whose training flags and "
             "parameters count.");
  module.def(
      "expose_to_autograd", [](const std::vector<at::Tensor>& parameters) { expose_to_autograd(parameters); },
      py::arg("parameters"), NoGil(),
      "Lets autograd see these parameters in all calls of graphed callables whose backward can still come.");
  bind_tensor_hooks(module);
}

}  // namespace pianola::python
