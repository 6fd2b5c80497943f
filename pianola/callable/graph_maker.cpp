#include <pianola/callable/graph_maker.hpp>

#include <pianola/callable/callable_graph.hpp>
#include <pianola/callable/captured_callable.hpp>
#include <pianola/callable/checked_reads.hpp>
#include <pianola/callable/function_call.hpp>
#include <pianola/callable/output_structure.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/memory_limit.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>

#include <functional>
#include <optional>
#include <utility>

namespace pianola::callable {
namespace {

std::vector<c10::IValue> values_of(std::span<const at::Tensor> tensors) { return {tensors.begin(), tensors.end()}; }

// What the last run of a function, and its backward pass, did.
struct LastRun {
  std::optional<EagerRun> run;
  std::shared_ptr<CheckedReads> reads = {};  // also of one that threw; nullptr: replays check none
  CustomBackwards backwards;
  std::optional<InputHolders> inputs = {};  // as the first run began, which warms up
};

// The same, and its last run is observed.
Callable observed(const Callable& callable, const std::shared_ptr<LastRun>& last, c10::Device device,
                  bool checks_reads) {
  return with_run(callable, [callable, last, device, checks_reads](std::vector<c10::IValue> arguments) {
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& argument : arguments) inputs.push_back(argument.toTensor());
    if (!last->inputs) last->inputs.emplace(inputs);
    c10::IValue value;
    auto islands =
        last->run ? std::make_shared<graph::Islands>(last->run->islands().notes()) : std::make_shared<graph::Islands>();
    if (checks_reads) {
      last->reads = last->run ? std::make_shared<CheckedReads>(device, last->reads->values())
                              : std::make_shared<CheckedReads>(device);
    }
    const auto numbers = std::make_shared<graph::NumberUses>();
    last->run.emplace(
        inputs, [&] { value = callable(std::move(arguments)); }, std::make_shared<HostParts>(), numbers,
        std::move(islands), last->reads);
    *numbers = graph::NumberUses();  // its aliases of views hold what they look at, and there are no slots
    last->run->islands().check_no_parameters();
    last->backwards = CustomBackwards(inputs, leaves_of(value));
    return value;
  });
}

// Between the run that warms up and the recording: nobody but the pass holds a static input. See Note [Inputs that a function keeps].
void check_no_input_is_kept(InputHolders inputs, const Observation& observation, Call& call) {
  inputs.keep_to(observation.inputs_to_let_go());
  inputs.expect_references(1);
  if (!inputs.kept_for_long()) return;
  call.collect_garbage();
  if (const auto input = inputs.kept()) throw UsageError(KeptTensors::refuse_kept_input(*input));
}

// The same, and notes that it was run.
Callable noting_runs(const Callable& callable, std::shared_ptr<bool> has_run) {
  return with_run(callable, [callable, has_run = std::move(has_run)](std::vector<c10::IValue> arguments) {
    *has_run = true;
    return callable(std::move(arguments));
  });
}

// What a part does on the host happens in a capture as well, which is then the call's own.
[[noreturn]] void refuse_ahead() {
  throw UsageError(
      {.what = "a step whose optimizer gives new numbers at each call cannot be captured ahead of a call: the capture "
               "would count as one of the optimizer's steps",
       .fix = "let a call capture it, or use one of pianola's optimizers, which keep their numbers on the device"});
}

// Where a replay stops, for a part that stays eager or to check what was read, other graphs may be replayed.
bool stops_midway(const GraphMaker::Source& source) {
  return !source.observation.islands().empty() || (source.checks_reads && !source.observation.checked_values().empty());
}

// The tape communicates while it records, and a recording knows of a part what the run before has shown alone: it would send that to
// the other ranks. A recording on a GPU sends nothing.
void check_what_it_sends(const Observation& observation) {
  if (!observation.communicates() || observation.islands().empty() || !observation.device().is_cpu()) return;
  throw UsageError(
      {.what = "the step has parts that stay eager, and works with other ranks outside of them: on the CPU its "
               "recording would send what these parts gave in another call",
       .fix = "communicate inside of the parts, or outside of the step",
       .rule = "PG1106"});
}

}  // namespace

SignatureCache::Result CachedGraph::replay(std::span<const at::Tensor> inputs) {
  if (unchanging == nullptr) return {.fresh = call->replay(inputs), .structure = structure};
  if (results == nullptr) {
    results = std::make_shared<const std::vector<at::Tensor>>(unchanging->replay(inputs));
  } else {
    unchanging->launch(inputs);
  }
  return {.unchanging = results, .structure = structure};
}

GraphMaker::GraphMaker(const CacheOptions& options, graph::StreamOrders& orders) : options_(options), orders_(orders) {
  if (!options.pool.empty()) pools_[options.pool.state()->device()].pool = options.pool;
}

std::string GraphMaker::note_of_second_run() const {
  if (!*has_run_) return "";
  return "\n  note:  the call was run again eagerly, so what it did on the host under capture happened twice";
}

CachedGraph GraphMaker::make(Call& call, const Source& source) {
  const OneCall::Scope making(making_, "a capture", "a cache");
  try {
    return try_to_make(call, source);
  } catch (...) {
    drop_unused_pools();
    throw;
  }
}

CachedGraph GraphMaker::try_to_make(Call& call, const Source& source) {
  graph::check_static_inputs(source.inputs, options_.memory_limit);
  std::shared_ptr<void> reservation;  // before its memory is told
  if (source.is_step) reservation = reserve(shared_pool(source.observation.device()), source);
  if (!source.is_adopted) {  // else that was a call with other shapes
    const bool plans = options_.plan_memory && source.is_step && !source.observation.device().is_cpu();
    const auto pool = pools_.find(source.observation.device());
    graph::check_memory(source.observation.memory(), options_.memory_limit, plans,
                        pool == pools_.end() ? nullptr : pool->second.pool.state().get());
  }
  const graph::KeepHostCopies keep(source.observation.copies_from_host() && !source.observation.device().is_cpu());
  *has_run_ = false;
  Capturable capturable = call.to_capture();
  const Callable callable = noting_runs(capturable.callable, has_run_);
  CachedGraph graph{.structure = std::move(capturable.structure), .device = source.observation.device()};
  if (!source.is_step) {
    graph.call = make_callable(callable, source, call);
    if (std::vector<c10::IValue> numbers = call.numbers(); !numbers.empty()) {
      (void)call.bind_numbers({.arguments = {std::move(numbers)}, .given = {}, .change = {}});  // it has no slots
    }
    return graph;
  }
  auto step = make_step(callable, source, call);
  if (options_.policy.whole_iterations && step->has_static_results()) graph.unchanging = step.get();
  graph.call = std::move(step);
  return graph;
}

std::unique_ptr<CapturedCall> GraphMaker::make_callable(const Callable& callable, const Source& source, Call& call) {
  const Observation& observation = source.observation;
  const bool differentiates = source.is_adopted || !observation.computes_only();
  const bool leaves_to_autograd = source.shares_gradients && options_.grad == GradPolicy::accumulate;
  CallableOptions options{.warmup = 1,
                          .grad = leaves_to_autograd ? GradPolicy::clone : options_.grad,
                          .output = options_.output,
                          .retain_graph = options_.retain_graph,
                          .allow_unused_input = true,
                          .differentiates = differentiates,
                          .gradient_per_use = source.shares_inputs,
                          .gradient_strides = source.gradient_strides,
                          // What others use as well has to be added in eager's order, at once.
                          .delay_weight_gradients = options_.delay_weight_gradients && !source.shares_gradients,
                          .generators = options_.generators,
                          .branches = options_.branches,
                          .parallel = options_.parallel,
                          .mode = options_.mode};
  if (options_.family != nullptr) options.pool = options_.family->make_pool(observation.device());
  if (observation.has_found_parts()) {
    throw UsageError(
        {.what = "what was found to read values that change could not be taken back in a backward pass outside",
         .fix = "graph the whole step, or mark it with pianola.eager"});
  }
  std::shared_ptr<void> reservation;
  if (observation.kind() == GraphedKind::inference) {
    options.pool = shared_pool(observation.device()).pool;
    if (options_.output == OutputPolicy::alias) reservation = options.pool.state()->reserve_used_memory();
  }
  InputBuffers* const buffers = buffers_for(source);
  const auto last = std::make_shared<LastRun>();
  const auto check_reads = [&] {
    if (last->reads == nullptr || begin_alike(last->reads->values(), observation.checked_values())) return;
    throw OtherReads({.what = "what it reads is another value than in the call before"});
  };
  options.post_warmup = [&] {
    if (last->inputs) check_no_input_is_kept(*last->inputs, observation, call);
  };
  const DroppedGradients gradients(source.gradients.leaves());
  std::optional<GraphedCallable> made;
  try {
    made.emplace(make_graphed_callable_in(buffers, observed(callable, last, observation.device(), source.checks_reads),
                                          values_of(source.inputs), options));
  } catch (const std::exception&) {
    check_reads();
    throw;
  }
  GraphedCallable graphed = *std::move(made);
  last->run->check();
  check_reads();
  std::optional<Undo> undo;
  if (last->reads != nullptr && last->reads->any()) {
    undo.emplace(*last->reads, observation.device(), options_.generators);
  }
  if (last->run->parts().any_active()) {
    throw UsageError({.what = "the function counts on the host in some of its calls only",
                      .fix = "let each call do the same",
                      .rule = "PG803"});
  }
  observation.check_capture(last->run->log(), options_.accept_capture_path);
  observation.check_captured_backwards(last->backwards, options_.accept_capture_path);
  observation.check_given_memory(*last->run, graphed.captured()->all_static_inputs());
  if (buffers != nullptr && differentiates &&
      hold_gradients(graphed.captured()->all_static_inputs(), last->run->watch().leaves())) {
    throw HeldInput({.what = "the function leaves a gradient in the memory of an input"});
  }
  LeafGuard leaves(last->run->watch().leaves(),
                   /*with_hooks=*/differentiates && options.grad == GradPolicy::accumulate);
  std::vector<at::Tensor> others = last->run->watch().outside_but_leaves();
  graph::RecurrentDropout dropout = last->run->watch().dropout();
  const graph::HostTensors host_tensors = last->run->watch().host_tensors();
  *last = {};  // which holds them, too
  graph::OutsideGuard outside(std::move(others));
  outside.watch_dropout(std::move(dropout));
  if (!observation.device().is_cpu()) outside.watch_values(host_tensors);
  return std::make_unique<CallableGraph>(std::move(graphed), std::move(outside), std::move(leaves), source.gradients,
                                         std::move(undo));
}

std::unique_ptr<StepGraph> GraphMaker::make_step(const Callable& callable, const Source& source, Call& call) {
  const Observation& observation = source.observation;
  check_what_it_sends(observation);
  SharedPool& shared = shared_pool(observation.device());
  auto graph = std::make_unique<StepGraph>(observation.device(), source.inputs, observation.spared_inputs(),
                                           options_.output, source.own_gradients, buffers_for(source));
  const auto step = [&](std::span<const at::Tensor> static_inputs) {
    return leaves_of(callable(values_of(static_inputs)));
  };
  ParallelOptions parallel = options_.parallel;
  parallel.warmed_up = true;                                         // by the calls that were observed
  const CaptureOptions options{.warmup = source.is_adopted ? 1 : 0,  // kernels may be chosen by shape
                               .pool = shared.pool,
                               .generators = options_.generators,
                               .branches = options_.branches,
                               .parallel = parallel,
                               .check = options_.policy.check,
                               .names = options_.policy.names,
                               .mode = options_.mode,
                               .memory_limit = source.is_adopted ? options_.memory_limit : 0,
                               .plan_memory = options_.plan_memory};
  const graph::RunToPlanBy to_plan_by(observation.memory() ? *observation.memory() : graph::RunToPlanBy::none());
  const bool follows_numbers = !call.numbers().empty();
  const RunBefore before{.reads = observation.values_read(),
                         .islands = observation.islands(),
                         .checked = source.checks_reads ? &observation.checked_values() : nullptr,
                         .trains = observation.kind() != GraphedKind::inference};
  graph->capture(step, observation.leaves_of_gradients(), before, options, [&](const EagerRun& run) {
    if (!source.is_adopted) observation.check_capture(run.log(), options_.accept_capture_path, !follows_numbers);
    observation.check_given_memory(run, graph->static_inputs());
    if (follows_numbers) {
      graph->bind_numbers(source.samples, [&](graph::NumberEvidence evidence) {
        evidence.arguments.insert(evidence.arguments.begin(), call.numbers());
        evidence.change = observation.difference_to_capture(run.log());
        return call.bind_numbers(evidence);
      });
    }
    if (is_ahead_ && run.parts().any_active()) refuse_ahead();
  });
  if (is_ahead_) graph->forget_recorded_call();
  shared.functions.insert(source.function);
  return graph;
}

// Whole iterations have a given pool of another device refused, which was meant for them.
GraphMaker::SharedPool& GraphMaker::shared_pool(c10::Device device) {
  const bool takes_given = options_.policy.whole_iterations && !options_.pool.empty();
  const c10::Device of_pool = takes_given ? options_.pool.state()->device() : device;
  SharedPool& shared = pools_[of_pool];
  if (shared.pool.empty()) {
    shared.pool = options_.family
                      ? options_.family->make_pool(device)
                      : GraphPoolRef(make_pool_state(device, nullptr, {.shares_region = options_.plan_memory}));
  }
  return shared;
}

// Where no capture has come to its end, cuBLAS's workspaces are left in one, and whoever stays eager never needs them.
void GraphMaker::drop_unused_pools() noexcept {
  std::erase_if(pools_, [](const auto& pool) { return pool.second.pool.state().use_count() == 1; });
}

// See Note [Static inputs that graphs share]. nullptr: the capture has inputs of its own. On the tape a step that has worked with
// other ranks could not be captured again.
InputBuffers* GraphMaker::buffers_for(const Source& source) {
  const Observation& observation = source.observation;
  const bool is_read_later = !source.is_step && observation.kind() != GraphedKind::inference;
  const bool asks_for_size = observation.log().has_called("aten::_has_same_storage_numel");
  if (!source.shares_input_memory || is_read_later || stops_midway(source) || !observation.values_read().empty() ||
      observation.communicates() || asks_for_size) {
    return nullptr;
  }
  try {
    orders_.enter(observation.device());
  } catch (const UsageError&) {  // nothing can wait for the last replay
    return nullptr;
  }
  return &buffers_;
}

std::shared_ptr<void> GraphMaker::reserve(const SharedPool& shared, const Source& source) const {
  const bool is_alone = shared.functions.size() == shared.functions.count(source.function);
  if (options_.policy.whole_iterations && options_.pool.empty() && is_alone) return nullptr;
  PoolState& pool = *shared.pool.state();
  const bool may_share = options_.plan_memory && source.shares_scratch && !stops_midway(source);
  return may_share ? pool.reserve_for_results() : pool.reserve_used_memory();
}

std::size_t GraphMaker::pool_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [device, shared] : pools_) bytes += shared.pool.state()->bytes();
  return bytes;
}

}  // namespace pianola::callable
