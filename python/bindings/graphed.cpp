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
      .def_readonly("signature", &SignatureInfo::signature)
      .def_property_readonly("kind", [](const SignatureInfo& self) { return std::string(to_string(self.kind)); })
      .def_property_readonly("state", [](const SignatureInfo& self) { return std::string(to_string(self.state)); })
      .def_readonly("warmup_calls", &SignatureInfo::warmup_calls)
      .def_readonly("graphs", &SignatureInfo::graphs)
      .def_readonly("recaptures", &SignatureInfo::recaptures)
      .def_readonly("replays", &SignatureInfo::replays)
      .def_readonly("eager_calls", &SignatureInfo::eager_calls)
      .def_property_readonly("reason", [](const SignatureInfo& self) { return in_python_words(self.reason); })
      .def_readonly("branches", &SignatureInfo::branches);
  py::class_<GraphedInfo>(module, "GraphedInfo", "What a graphed function knows and keeps.")
      .def_readonly("signatures", &GraphedInfo::signatures)
      .def_readonly("evictions", &GraphedInfo::evictions)
      .def_readwrite("unfollowed", &GraphedInfo::unfollowed)
      .def("report", &GraphedInfo::report)
      .def("__str__", [](const GraphedInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_graphed(py::module_& module) {
  bind_graphed_info(module);
  py::class_<GraphedOptions>(module, "GraphedOptions")
      .def(py::init(&make_graphed_options), py::kw_only(), py::arg("warmup"), py::arg("capacity"),
           py::arg("max_in_flight"), py::arg("output"), py::arg("grad"), py::arg("retain_graph"),
           py::arg("accept_capture_path"), py::arg("pool"), py::arg("generators"), py::arg("branches"),
           py::arg("parallel"), py::arg("mode"), py::arg("on_fallback"));
  py::class_<PythonCache>(module, "GraphedCache")
      .def(py::init<GraphedOptions, const py::function&, const py::object&>(), py::arg("options"), py::arg("original"),
           py::arg("module"))
      .def("run", &PythonCache::run)
      .def("refuse", &PythonCache::refuse)
      .def("reset", &PythonCache::reset, py::call_guard<WithoutGil>())
      .def("info", &PythonCache::info, py::call_guard<WithoutGil>());
}

}  // namespace pianola::python
