#include <pianola/callable/graph_maker.hpp>

#include <pianola/callable/callable_graph.hpp>
#include <pianola/callable/output_structure.hpp>
#include <pianola/callable/step_graph.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/pool_state.hpp>

#include <functional>
#include <optional>
#include <utility>

namespace pianola::callable {
namespace {

std::vector<c10::IValue> values_of(std::span<const at::Tensor> tensors) { return {tensors.begin(), tensors.end()}; }

// The same, and its last run is observed.
Callable observed(const Callable& callable, const std::shared_ptr<std::optional<ObservedRun>>& last) {
  Callable::Run run = [callable, last](std::vector<c10::IValue> arguments) {
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& argument : arguments) inputs.push_back(argument.toTensor());
    c10::IValue value;
    last->emplace(inputs, [&] { value = callable(std::move(arguments)); });
    return value;
  };
  if (!callable.is_module()) return run;
  return Callable::of_module(std::move(run), [callable] { return callable.view(); });
}

// Set while it lives.
class Flag {
 public:
  explicit Flag(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  ~Flag() { flag_ = false; }

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

BankGraph GraphMaker::make(BankCall& call, std::span<const at::Tensor> inputs, const Observation& observation) {
  const Flag making(is_making_);
  Capturable capturable = call.to_capture();
  auto graph = observation.kind() == GraphedKind::step ? make_step(capturable, inputs, observation)
                                                       : make_callable(capturable, inputs, observation);
  return {.call = std::move(graph), .structure = std::move(capturable.structure), .device = observation.device()};
}

std::unique_ptr<CapturedCall> GraphMaker::make_callable(const Capturable& capturable,
                                                        std::span<const at::Tensor> inputs,
                                                        const Observation& observation) {
  CallableOptions options{.warmup = 1,
                          .grad = options_.grad,
                          .output = options_.output,
                          .retain_graph = options_.retain_graph,
                          .allow_unused_input = true,
                          .generators = options_.generators,
                          .branches = options_.branches,
                          .parallel = options_.parallel,
                          .mode = options_.mode};
  std::shared_ptr<void> reservation;
  if (observation.kind() == GraphedKind::inference) {
    options.pool = shared_pool(observation.device());
    if (options_.output == OutputPolicy::alias) reservation = options.pool.state()->reserve_used_memory();
  }
  const auto last = std::make_shared<std::optional<ObservedRun>>();
  GraphedCallable graphed = make_graphed_callable(observed(capturable.callable, last), values_of(inputs), options);
  if (!(*last)->failure().empty()) throw UsageError({.what = (*last)->failure()});
  observation.check_numbers((*last)->numbers());
  LeafGuard leaves((*last)->watch().leaves(), /*with_hooks=*/options_.grad == GradPolicy::accumulate);
  std::vector<at::Tensor> others = (*last)->watch().outside_but_leaves();
  last->reset();  // which holds them, too
  return std::make_unique<CallableGraph>(std::move(graphed), graph::OutsideGuard(std::move(others)), std::move(leaves));
}

std::unique_ptr<CapturedCall> GraphMaker::make_step(const Capturable& capturable, std::span<const at::Tensor> inputs,
                                                    const Observation& observation) {
  const GraphPoolRef& pool = shared_pool(observation.device());
  const std::shared_ptr<void> reservation = pool.state()->reserve_used_memory();
  auto graph = std::make_unique<StepGraph>(observation.device(), inputs, options_.output);
  const auto step = [&](std::span<const at::Tensor> static_inputs) {
    return leaves_of(capturable.callable(values_of(static_inputs)));
  };
  ParallelOptions parallel = options_.parallel;
  parallel.warmed_up = true;  // by the calls that were observed
  graph->capture(step, observation.leaves(),
                 {.warmup = 0,
                  .pool = pool,
                  .generators = options_.generators,
                  .branches = options_.branches,
                  .parallel = parallel,
                  .mode = options_.mode},
                 [&](const NumberLog& numbers) { observation.check_numbers(numbers); });
  return graph;
}

const GraphPoolRef& GraphMaker::shared_pool(c10::Device device) {
  if (!options_.pool.empty() && options_.pool.state()->device() == device) return options_.pool;
  GraphPoolRef& pool = pools_[device];
  if (pool.empty()) pool = GraphPoolRef(GraphPool(device));
  return pool;
}

}  // namespace pianola::callable
