#include <bindings/bindings.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/python_call.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/callable/signature_cache.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::python {
namespace {

using callable::SignatureCache;

// A cache and the module whose calls it keeps, if it is one's: held weakly, as the module holds the cache.
class PythonCache {
 public:
  PythonCache(GraphedOptions options, const py::function& original, const py::object& module)
      : module_(module.is_none() ? module : py::object(py::weakref(module))),
        cache_(std::move(options), [seen = make_callable(original, module)] { return seen.view(); }) {}

  // The result's tensors and their structure; None where the call ran eagerly.
  py::object run(std::int64_t key, const py::object& call, const py::args& inputs) {
    PythonCall python_call(call, module());
    const std::vector<at::Tensor> tensors = tensors_of(inputs);
    std::optional<SignatureCache::Result> result;
    {
      const WithoutGil release;
      result = cache_.run({key}, {.copied = tensors}, python_call);
    }
    if (!result) return py::none();
    const auto& structure = *static_cast<const HeldObject*>(result->structure.get());
    return py::make_tuple(to_python(result->leaves()), structure.get());
  }

  void refuse(std::int64_t key, std::string reason, const py::args& inputs) {
    const std::vector<at::Tensor> tensors = tensors_of(inputs);
    const WithoutGil release;
    cache_.refuse({key}, {.copied = tensors}, std::move(reason));
  }

  void reset() { cache_.reset(); }
  [[nodiscard]] GraphedInfo info() const { return cache_.info(); }

 private:
  [[nodiscard]] py::object module() const {
    const py::object held = module_.get();
    return held.is_none() ? held : held();
  }

  HeldObject module_;
  SignatureCache cache_;
};

GraphedOptions make_graphed_options(int warmup, int capacity, int max_in_flight, OutputPolicy output, GradPolicy grad,
                                    bool retain_graph, bool accept_capture_path,
                                    const std::optional<std::pair<c10::Device, PoolId>>& pool,
                                    std::vector<at::Generator> generators, int branches,
                                    const std::optional<ParallelOptions>& parallel, const std::string& mode,
                                    const py::object& on_fallback) {
  return {.warmup = warmup,
          .capacity = capacity,
          .max_in_flight = max_in_flight,
          .output = output,
          .grad = grad,
          .retain_graph = retain_graph,
          .pool = pool ? GraphPoolRef(GraphPool(pool->first, pool->second)) : GraphPoolRef(),
          .generators = std::move(generators),
          .accept_capture_path = accept_capture_path,
          .branches = branches,
          .parallel = parallel.value_or(ParallelOptions()),
          .mode = capture_mode(mode),
          .on_fallback = make_listener(on_fallback)};
}

void bind_graphed_info(py::module_& module) {
  py::class_<SignatureInfo>(module, "SignatureInfo", "One signature that a graphed function knows.")
      .def_readonly("signature", &SignatureInfo::signature, "As in \"Float[8, 16] cpu\".")
      .def_property_readonly(
          "kind", [](const SignatureInfo& self) { return std::string(to_string(self.kind)); },
          "\"undecided\", \"inference\", \"autograd\" or \"step\".")
      .def_property_readonly(
          "state", [](const SignatureInfo& self) { return std::string(to_string(self.state)); },
          "\"warming up\", \"captured\" or \"eager\".")
      .def_readonly("warmup_calls", &SignatureInfo::warmup_calls, "Eager calls before the capture.")
      .def_readonly("graphs", &SignatureInfo::graphs, "That it keeps now.")
      .def_readonly("recaptures", &SignatureInfo::recaptures,
                    "Captures after the first because what was captured had become stale.")
      .def_readonly("replays", &SignatureInfo::replays, "Calls that were replayed.")
      .def_readonly("eager_calls", &SignatureInfo::eager_calls, "Calls that ran eagerly, warm-up included.")
      .def_property_readonly(
          "reason", [](const SignatureInfo& self) { return in_python_words(self.reason); },
          "Why it stays eager; empty for others.")
      .def_readonly("branches", &SignatureInfo::branches,
                    "What `branches` came to, for each graph that it keeps now; a call with a backward pass has two.");
  py::class_<GraphedInfo>(module, "GraphedInfo", "What a graphed function knows and keeps.")
      .def_readonly("signatures", &GraphedInfo::signatures, "The most recently called first.")
      .def_readonly("evictions", &GraphedInfo::evictions, "Signatures that lost their graphs to others.")
      .def_readwrite("unfollowed", &GraphedInfo::unfollowed,
                     "What it reads on the host, and is not compared at each call.")
      .def("report", &GraphedInfo::report, "All of it.")
      .def("__str__", [](const GraphedInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_graphed(py::module_& module) {
  bind_graphed_info(module);
  py::class_<GraphedOptions>(module, "GraphedOptions", "When a graphed function captures, and how much it keeps.")
      .def(py::init(&make_graphed_options), py::kw_only(), py::arg("warmup"), py::arg("capacity"),
           py::arg("max_in_flight"), py::arg("output"), py::arg("grad"), py::arg("retain_graph"),
           py::arg("accept_capture_path"), py::arg("pool"), py::arg("generators"), py::arg("branches"),
           py::arg("parallel"), py::arg("mode"), py::arg("on_fallback"));
  py::class_<PythonCache>(module, "GraphedCache", "The graphs of one function, by signature of its calls.")
      .def(py::init<GraphedOptions, const py::function&, const py::object&>(), py::arg("options"), py::arg("original"),
           py::arg("module"))
      .def("run", &PythonCache::run, "The result's tensors and their structure; None where the call ran eagerly.")
      .def("refuse", &PythonCache::refuse, "Keeps calls of this key with such inputs eager from now on.")
      .def("reset", &PythonCache::reset, py::call_guard<WithoutGil>(), "Forgets all signatures and drops their graphs.")
      .def("info", &PythonCache::info, py::call_guard<WithoutGil>(), "What is known and kept, per signature.");
}

}  // namespace pianola::python
