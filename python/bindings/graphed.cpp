#include <bindings/arriving_call.hpp>
#include <bindings/bindings.hpp>
#include <bindings/fast_method.hpp>
#include <bindings/gil.hpp>
#include <bindings/graph_options.hpp>
#include <bindings/held_object.hpp>
#include <bindings/known_call.hpp>
#include <bindings/object_words.hpp>
#include <bindings/plain_tree.hpp>
#include <bindings/python_call.hpp>
#include <bindings/python_function.hpp>
#include <bindings/python_words.hpp>
#include <bindings/tensor_list.hpp>

#include <pianola/callable/graphed_layers.hpp>
#include <pianola/callable/signature_cache.hpp>
#include <pianola/trace/late_read.hpp>
#include <pianola/trace/number_span.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/training/delivery.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <functional>
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
  // `values`: of what graphs of this key have slots for.
  py::object run(std::int64_t key, const py::object& call, const py::tuple& values, const py::args& inputs) {
    PythonCall python_call(call, module());
    const std::optional<SignatureCache::Result> result =
        run_in_cache(key, tensors_of(inputs), numbers_of(values), python_call);
    if (!result) return py::none();
    return py::make_tuple(to_python(result->leaves()), structure_of(*result));
  }

  // Null where nothing is known of such a call. Of what it does, a call that is replayed needs no object.
  py::object run_known(const py::handle& graphed, const py::handle& args, const py::handle& kwargs) {
    if (known_.empty() && arriving_.empty()) return {};
    PlainTree arguments;
    if (!arguments.take_arguments_apart(args.ptr(), kwargs.ptr())) return {};
    std::vector<at::Tensor> tensors = arguments.tensors();
    const auto arriving =
        std::find_if(arriving_.begin(), arriving_.end(), [&](const auto& one) { return one->takes(tensors); });
    if (arriving != arriving_.end()) return run_arriving(*arriving, arguments, std::move(tensors), args, kwargs);
    const Fitting fitting = known_now(arguments);  // which may run anything: from here on the arguments may have ended
    if (!fitting.known) return {};
    return run_in(fitting, tensors, [&] {
      forget();
      return py::object(graphed.attr("_call_in")(fitting.state, args, kwargs));
    });
  }

  void remember(const py::object& state, std::int64_t number, const py::tuple& args, const py::dict& kwargs,
                std::vector<std::size_t> followed) {
    PlainTree arguments;
    if (!arguments.take_arguments_apart(args.ptr(), kwargs.ptr())) return;
    auto known = std::make_shared<const KnownCall>(arguments, state, number,
                                                   std::move(followed));  // may collect garbage: run anything
    std::erase_if(known_, [&](const auto& one) {
      return one->has(arguments) && (!one->follows_numbers() || one->number() == number);
    });
    if (known_.size() == kMostKnown) known_.pop_back();
    known_.insert(known_.begin(), std::move(known));
  }

  // Inputs of such calls arrive, where they lie like those of `inputs`: `brought` calls a function whose cache may know them.
  void deliver(const py::object& brought, std::vector<std::size_t> places, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& there) {
    std::erase_if(arriving_, [](const auto& one) { return !one->brought(); });
    const auto is_there = [&](const auto& one) { return one->brought().is(brought) && one->takes(inputs); };
    if (std::any_of(arriving_.begin(), arriving_.end(), is_there)) return;
    auto made = std::make_shared<const ArrivingCall>(brought, std::move(places), there);
    if (arriving_.size() == kMostArriving) arriving_.pop_back();
    arriving_.insert(arriving_.begin(), std::move(made));
  }

  [[nodiscard]] bool knows_calls() const { return !known_.empty(); }
  void forget() { known_.clear(); }

  void refuse(std::int64_t key, std::string reason, const py::args& inputs) {
    const std::vector<at::Tensor> tensors = tensors_of(inputs);
    const WithoutGil release;
    cache_.refuse({key}, {.copied = tensors}, std::move(reason));
  }

  void reset() {
    known_.clear();
    arriving_.clear();
    const WithoutGil release;
    cache_.reset();
  }
  bool backward_weights() { return cache_.backward_weights(); }
  [[nodiscard]] std::uint64_t oldest_debt() const { return cache_.oldest_debt(); }
  [[nodiscard]] GraphedInfo info() const { return cache_.info(); }

 private:
  static constexpr std::size_t kMostKnown = 8;
  // Each holds its inputs on the device once, and twice in pinned memory.
  static constexpr std::size_t kMostArriving = 16;

  // A call that is known, and the state that it is in.
  struct Fitting {
    std::shared_ptr<const KnownCall> known = {};
    py::object state = {};
    py::tuple numbers = py::tuple();
    py::object values = py::tuple();
  };

  [[nodiscard]] Fitting known_now(const PlainTree& arguments) const {
    c10::SmallVector<std::pair<std::shared_ptr<const KnownCall>, py::tuple>, 1> fitting;
    for (const auto& one : known_) {
      if (!one->has(arguments)) continue;
      fitting.emplace_back(one, one->numbers_in(arguments));
      if (!one->follows_numbers()) break;  // else its state tells whether it is the one
    }
    for (auto& [known, numbers] : fitting) {  // a look at the host may run anything: here known_ may change
      py::object values = py::tuple();
      if (py::object state = known->state_now(numbers, values))
        return {std::move(known), std::move(state), std::move(numbers), std::move(values)};
    }
    return {};
  }

  template <class MakeCall>
  py::object run_in(const Fitting& fitting, const std::vector<at::Tensor>& tensors, const MakeCall& make_call,
                    const training::Delivery::Arrived* arrived = nullptr) {
    PythonCall call(std::ref(make_call), module());
    std::optional<SignatureCache::Result> result =
        run_in_cache(fitting.known->number(), tensors, numbers_of(fitting.values), call);
    if (!result) return py::object(call.object().attr("result"));
    if (arrived != nullptr) {
      for (at::Tensor& leaf : result->fresh) {
        if (arrived->holds(leaf)) leaf = leaf.clone();
      }
    }
    return rebuilt(*result, fitting.numbers);
  }

  // By the cache of the function that is called with what has arrived.
  // Takes `arriving` by value: others may put it out of the list meanwhile.
  static py::object run_arriving(
      std::shared_ptr<const ArrivingCall> arriving,  // NOLINT(performance-unnecessary-value-param)
      const PlainTree& arguments, std::vector<at::Tensor> tensors, const py::handle& args, const py::handle& kwargs) {
    static PyObject* const graphed_name = interned("graphed");
    static PyObject* const cache_name = interned("_cache");
    static PyObject* const is_plain_name = interned("is_plain");
    c10::SmallVector<py::object, 16> held;  // what is looked at behind code of Python's
    for (PyObject* const one : arguments.keys) held.push_back(borrowed(one));
    for (PyObject* const one : arguments.leaves) held.push_back(borrowed(one));
    const py::object brought = arriving->brought();
    if (!brought || !attribute(brought, is_plain_name).cast<bool>()) return {};
    const py::object cache = attribute(attribute(brought, graphed_name), cache_name);
    return held_by<PythonCache>(cache.ptr())
        ->run_brought(*arriving, brought, arguments, std::move(tensors), args, kwargs);
  }

  py::object run_brought(const ArrivingCall& arriving, const py::object& brought, const PlainTree& arguments,
                         std::vector<at::Tensor> tensors, const py::handle& args, const py::handle& kwargs) {
    const Fitting fitting = known_now(arguments);
    if (!fitting.known) return {};
    const std::optional<training::Delivery::Arrived> arrived = arriving.bring(tensors);
    if (!arrived) return {};
    BroughtRun eager(brought);
    return run_in(
        fitting, tensors,
        [&] {
          forget();
          return eager.begin(fitting.state, args, kwargs);
        },
        &*arrived);
  }

  std::optional<SignatureCache::Result> run_in_cache(std::int64_t key, const std::vector<at::Tensor>& tensors,
                                                     const std::vector<c10::IValue>& values, PythonCall& call) {
    const WithoutGil release;
    return cache_.run({key}, {.copied = tensors, .numbers = values}, call);
  }

  // Of what was captured: a FlatFunction.
  static py::object structure_of(const SignatureCache::Result& result) {
    return static_cast<const HeldObject*>(result.structure.get())->get();
  }

  static py::object rebuilt(const SignatureCache::Result& result, const py::tuple& numbers) {
    static PyObject* const outputs_name = interned("outputs");
    static PyObject* const outline_name = interned("outline");
    static PyObject* const frozen_name = interned("frozen");
    const py::object function = structure_of(result);
    const py::object outputs = attribute(function, outputs_name);
    const py::object outline = attribute(outputs, outline_name);
    if (outline.is_none()) return function.attr("rebuild")(to_python(result.leaves()), numbers);
    return put_plain_together(outline, attribute(outputs, frozen_name), result.leaves());
  }

  [[nodiscard]] py::object module() const {
    const py::object held = module_.get();
    if (held.is_none()) return held;
    PyObject* const module = alive(held.ptr());
    return module == nullptr ? py::none() : borrowed(module);
  }

  HeldObject module_;
  SignatureCache cache_;
  std::vector<std::shared_ptr<const KnownCall>> known_;        // only while all calls are replayed
  std::vector<std::shared_ptr<const ArrivingCall>> arriving_;  // the latest first
};

PyObject* call_of(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return call_method<PythonCache>(self, [&](PythonCache& cache) -> PyObject* {
    if (count != 3) throw py::type_error("call() takes a function, its arguments and its keyword arguments");
    static PyObject* const closer_look = interned("_call");
    py::object result = cache.run_known(arguments[0], arguments[1], arguments[2]);
    if (result) return result.release().ptr();
    return PyObject_CallMethodObjArgs(arguments[0], closer_look, arguments[1], arguments[2], nullptr);
  });
}

PyMethodDef call_method_of_cache = {
    "call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_of)), METH_FASTCALL,
    "call(self: pianola._C.GraphedCache, graphed: object, args: tuple, kwargs: dict) -> object\n\n"
    "The result of a call; of one that nothing is known of, what `graphed._call(args, kwargs)` returns."};

GraphedOptions make_graphed_options(int warmup, int capacity, int max_in_flight, OutputPolicy output, GradPolicy grad,
                                    bool delay_weight_gradients, bool retain_graph, std::size_t memory_limit,
                                    bool plan_memory, bool accept_capture_path,
                                    const std::optional<std::pair<c10::Device, PoolId>>& pool,
                                    const std::optional<std::shared_ptr<GraphPoolFamily>>& family,
                                    std::vector<at::Generator> generators, const Lanes& branches,
                                    const std::optional<ParallelOptions>& parallel, bool checks_reads,
                                    const std::string& mode, const py::object& on_fallback) {
  return {.warmup = warmup,
          .capacity = capacity,
          .max_in_flight = max_in_flight,
          .output = output,
          .grad = grad,
          .delay_weight_gradients = delay_weight_gradients,
          .retain_graph = retain_graph,
          .pool = pool ? GraphPoolRef(GraphPool(pool->first, pool->second)) : GraphPoolRef(),
          .family = family.value_or(nullptr),
          .generators = std::move(generators),
          .memory_limit = memory_limit,
          .plan_memory = plan_memory,
          .accept_capture_path = accept_capture_path,
          .branches = branches_of(branches),
          .islands = checks_reads ? IslandPolicy::automatic : IslandPolicy::marked,
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
      .def_readonly("eager_calls", &SignatureInfo::eager_calls,
                    "Calls that ran eagerly, warm-up included; not those in which parts are looked for.")
      .def_readonly("misses", &SignatureInfo::misses,
                    "Replays that read another value than their capture, so that the call ran eagerly.")
      .def_readonly("reads_values", &SignatureInfo::reads_values, "It asks the device for values.")
      .def_property_readonly(
          "reason", [](const SignatureInfo& self) { return in_python_words(self.reason); },
          "Why it stays eager; empty for others.")
      .def_readonly("gain", &SignatureInfo::gain,
                    "What a replay is: \"one launch in place of 530 operations\"; empty where nothing is replayed.")
      .def_readonly("branches", &SignatureInfo::branches,
                    "What `branches` came to, for each graph that it keeps now; a call with a backward pass has two.");
  py::class_<GraphedInfo>(module, "GraphedInfo", "What a graphed function knows and keeps.")
      .def_readwrite("signatures", &GraphedInfo::signatures, "The most recently called first.")
      .def_readonly("evictions", &GraphedInfo::evictions, "Signatures that lost their graphs to others.")
      .def_readwrite("input_bytes", &GraphedInfo::input_bytes,
                     "Of tensors that graphs copy inputs into; memory that several share counts once.")
      .def_readwrite("unfollowed", &GraphedInfo::unfollowed,
                     "What it reads on the host, and is not compared at each call.")
      .def_readwrite("numbers", &GraphedInfo::numbers, "What becomes of numbers among the arguments that change.")
      .def_readwrite("parts", &GraphedInfo::parts, "Modules that read values that change, and stay eager.")
      .def_readwrite("compiled", &GraphedInfo::compiled, "What became of compiling its modules.")
      .def("report", &GraphedInfo::report, "All of it.")
      .def("__str__", [](const GraphedInfo& self) { return self.report().to_text(); });
}

void bind_layers_info(py::module_& module) {
  using Layer = LayersInfo::Layer;
  py::class_<Layer>(module, "LayerInfo", "What one graphed layer of a model does and keeps.")
      .def_readonly("name", &Layer::name, "As in model.named_modules().")
      .def_readonly("info", &Layer::info, "Per signature.");
  py::class_<LayersInfo>(module, "LayersInfo", "What the graphed layers of a model do and keep.")
      .def(py::init([](std::vector<std::pair<std::string, GraphedInfo>> layers) {
             LayersInfo all;
             for (auto& [name, info] : layers) {
               for (SignatureInfo& one : info.signatures) one.reason = in_python_words(one.reason);
               all.layers.push_back({.name = std::move(name), .info = std::move(info)});
             }
             return all;
           }),
           py::arg("layers"))
      .def_readonly("layers", &LayersInfo::layers, "In the order of the model.")
      .def("report", &LayersInfo::report, "A line for each layer, and why calls stay eager.")
      .def("__str__", [](const LayersInfo& self) { return self.report().to_text(); });
}

}  // namespace

void bind_graphed(py::module_& module) {
  bind_graphed_info(module);
  bind_layers_info(module);
  py::class_<GraphedOptions>(module, "GraphedOptions", "When a graphed function captures, and how much it keeps.")
      .def(py::init(&make_graphed_options), py::kw_only(), py::arg("warmup"), py::arg("capacity"),
           py::arg("max_in_flight"), py::arg("output"), py::arg("grad"), py::arg("delay_weight_gradients"),
           py::arg("retain_graph"), py::arg("memory_limit"), py::arg("plan_memory"), py::arg("accept_capture_path"),
           py::arg("pool"), py::arg("family"), py::arg("generators"), py::arg("branches"), py::arg("parallel"),
           py::arg("checks_reads"), py::arg("mode"), py::arg("on_fallback"));
  py::class_<PythonCache> cache(module, "GraphedCache", "The graphs of one function, by signature of its calls.");
  cache
      .def(py::init<GraphedOptions, const py::function&, const py::object&>(), py::arg("options"), py::arg("original"),
           py::arg("module"))
      .def("run", &PythonCache::run, py::arg("key"), py::arg("call"), py::arg("values"),
           "The result's tensors and their structure; None where the call ran eagerly.")
      .def("remember", &PythonCache::remember, py::arg("state"), py::arg("number"), py::arg("args"), py::arg("kwargs"),
           py::arg("followed"),
           "Such a call was replayed: call() knows the next ones, as long as the state's guard finds no difference.")
      .def("deliver", &PythonCache::deliver, py::arg("brought"), py::arg("places"), py::arg("inputs"), py::arg("there"),
           "call() brings inputs at these places to the device itself, where they lie as in `inputs`, the tensors of a "
           "call, and the cache of `brought.graphed` knows the call. They arrive as `there` lies.")
      .def("knows_calls", &PythonCache::knows_calls, "Whether remember() was told of a call, and forget() not since.")
      .def("forget", &PythonCache::forget, "What remember() was told.")
      .def("backward_weights", &PythonCache::backward_weights, py::call_guard<WithoutGil>(),
           "Computes the gradients of weights that the oldest backward has left for later. False: none has left any.")
      .def("oldest_debt", &PythonCache::oldest_debt, py::call_guard<WithoutGil>(),
           "Rises from backward to backward of the process: which one backward_weights() is for; 0: none.")
      .def("refuse", &PythonCache::refuse, "Keeps calls of this key with such inputs eager from now on.")
      .def("reset", &PythonCache::reset, "Forgets all signatures and drops their graphs.")
      .def("info", &PythonCache::info, py::call_guard<WithoutGil>(), "What is known and kept, per signature.");
  add_method(cache, call_method_of_cache);
  module.def(
      "may_deliver", &training::may_deliver,
      "Whether inputs of a call may be brought to the device before the call: not in a capture, nor under modes.");
  module.def(
      "given_numbers",
      [](std::vector<int> sources, const py::function& function, const py::tuple& args, const py::dict& kwargs) {
        const trace::NumberSpan span(std::move(sources));
        return function(*args, **kwargs);
      },
      py::arg("sources"), py::arg("function"), py::arg("args"), py::arg("kwargs"),
      "Calls it; operations that it calls were given these numbers.");
  module.def(
      "view_unseen",
      [](const py::object& tensor, const py::object& type) {
        const trace::QuietScope quiet;
        return tensor.attr("as_subclass")(type);
      },
      py::arg("tensor"), py::arg("type"), "The tensor as one of a subclass. Who watches operations does not see it.");
  module.def(
      "read_late",
      [](const py::function& read, const py::object& tensor) {
        const trace::LateRead late;
        return read(tensor);
      },
      py::arg("read"), py::arg("tensor"), "What `read` makes of a tensor; HostEffects says later what becomes of it.");
}

}  // namespace pianola::python
