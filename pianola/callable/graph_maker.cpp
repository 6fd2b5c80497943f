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

// Another way to run the same.
Callable with_run(const Callable& callable, Callable::Run run) {
  if (!callable.is_module()) return run;
  return Callable::of_module(std::move(run), [callable] { return callable.view(); });
}

// What the last run of a function, and its backward pass, did.
struct LastRun {
  std::optional<ObservedRun> run;
  CustomBackwards backwards;
};

// The same, and its last run is observed.
Callable observed(const Callable& callable, const std::shared_ptr<LastRun>& last) {
  return with_run(callable, [callable, last](std::vector<c10::IValue> arguments) {
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& argument : arguments) inputs.push_back(argument.toTensor());
    c10::IValue value;
    last->run.emplace(inputs, [&] { value = callable(std::move(arguments)); });
    last->backwards = CustomBackwards(leaves_of(value));
    return value;
  });
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

Callable noting_runs(const Callable& callable, std::shared_ptr<bool> has_run) {
  return with_run(callable, [callable, has_run = std::move(has_run)](std::vector<c10::IValue> arguments) {
    *has_run = true;
    return callable(std::move(arguments));
  });
}

std::string note_of_second_run(bool has_run) {
  return has_run
             ? "\n  note:  the call was run again, eagerly: what it did on the host while it was captured, it did twice"
             : "";
}

std::string GraphMaker::note_of_second_run() const { return callable::note_of_second_run(*has_run_); }

BankGraph GraphMaker::make(BankCall& call, std::span<const at::Tensor> inputs, const Observation& observation) {
  const Flag making(is_making_);
  *has_run_ = false;
  Capturable capturable = call.to_capture();
  capturable.callable = noting_runs(capturable.callable, has_run_);
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
  const auto last = std::make_shared<LastRun>();
  GraphedCallable graphed = make_graphed_callable(observed(capturable.callable, last), values_of(inputs), options);
  if (!last->run->failure().empty()) throw UsageError({.what = last->run->failure()});
  observation.check_capture(last->run->log(), options_.accept_capture_path);
  observation.check_captured_backwards(last->backwards, options_.accept_capture_path);
  LeafGuard leaves(last->run->watch().leaves(), /*with_hooks=*/options_.grad == GradPolicy::accumulate);
  std::vector<at::Tensor> others = last->run->watch().outside_but_leaves();
  graph::RecurrentDropout dropout = last->run->watch().dropout();
  *last = {};  // which holds them, too
  graph::OutsideGuard outside(std::move(others));
  outside.watch_dropout(std::move(dropout));
  return std::make_unique<CallableGraph>(std::move(graphed), std::move(outside), std::move(leaves));
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
                 [&](const trace::OperationLog& log) { observation.check_capture(log, options_.accept_capture_path); });
  return graph;
}

const GraphPoolRef& GraphMaker::shared_pool(c10::Device device) {
  if (!options_.pool.empty() && options_.pool.state()->device() == device) return options_.pool;
  GraphPoolRef& pool = pools_[device];
  if (pool.empty()) pool = GraphPoolRef(GraphPool(device));
  return pool;
}

}  // namespace pianola::callable
