// The part of CapturedMode that warms up and captures.
#include <pianola/callable/captured_mode.hpp>

#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

void call(const std::function<void()>& hook) {
  if (hook) hook();
}

std::vector<std::uint32_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(static_cast<std::uint32_t>(tensor._version()));
  return versions;
}

// The same memory without a history. Results that share what the graph made share a counter of writes, too.
at::Tensor static_output(const at::Tensor& output, bool is_made_by_the_graph) {
  c10::TensorImpl* impl = output.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(
      is_made_by_the_graph ? impl->version_counter() : c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

// Copies in place of those that look at memory of `others`, which is for somebody else to write: a gradient that is
// handed through is overwritten by that of the next callable.
void set_apart(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& others) {
  const at::AutoGradMode no_grad(false);
  for (at::Tensor& tensor : tensors) {
    const bool shared = tensor.defined() && std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) {
                          return trace::storage_of(other) == trace::storage_of(tensor);
                        });
    if (shared) tensor = tensor.clone();
  }
}

// Shows up in the messages of operations inside: "in scope 'callable 3 (backward)'".
class NamedScope {
 public:
  explicit NamedScope(const std::string& name) : span_(at::RecordScope::USER_SCOPE) {
    if (span_.isActive()) span_.before(name);
  }

 private:
  at::RecordFunction span_;
};

// Shows the operations to the observer, where there is one.
void watched(trace::OpObserver* observer, const std::function<void()>& run) {
  if (observer == nullptr) return run();
  const trace::OpStream watching({observer});
  run();
  watching.check();
}

}  // namespace

CaptureOptions CaptureContext::capture_options(int warmup) const {
  ParallelOptions parallel = options.parallel;
  parallel.warmed_up = true;  // all modes warm up before the first is captured
  return {.warmup = warmup,
          .pool = pool,
          .generators = options.generators,
          .branches = options.branches,
          .parallel = parallel,
          .mode = options.mode,
          .communication = false,
          .differentiates = options.differentiates};
}

CapturedMode::CapturedMode(const Subject& subject, Mode mode, std::span<const at::Tensor> sample, int slots,
                           c10::Device device, InputBuffers* buffers)
    : subject_(subject),
      mode_(mode),
      ambient_(Ambient::current(device.type())),
      ambient_in_backward_(ambient_),
      flags_(subject.module->flags()) {
  ambient_in_backward_.function_modes = {};
  ambient_in_backward_.autocast = false;
  ambient_in_backward_.autocast_dtype = c10::ScalarType::Undefined;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    input_guards_.emplace_back(sample[i], mode.gradients);
    if (mode.gradients && sample[i].requires_grad()) differentiable_inputs_.push_back(i);
    samples_.push_back(sample[i].unsafeGetTensorImpl());
  }
  is_returned_.resize(sample.size());
  for (int slot = 0; slot < slots; ++slot) {
    Pass& pass = *passes_.emplace_back(std::make_unique<Pass>(device));
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const at::Tensor copy =
          buffers != nullptr && slots == 1 ? buffers->static_copy_of(i, sample[i]) : graph::static_copy_of(sample[i]);
      pass.inputs.push_back(copy.set_requires_grad(mode.gradients && sample[i].requires_grad()));
    }
  }
}

// A module's own parameters are known beforehand; TorchScript's executor may hide the operations that read them.
void CapturedMode::warm_up(CaptureContext& context) {
  if (!context.options.accept_capture_path && graph::PathCheck::can_tell(context.options.warmup)) {
    paths_.emplace();
  }
  for (const at::Tensor& parameter : subject_.module->differentiable_parameters()) note_leaf(context, parameter);
  const int runs = ambient_.autocast && mode_.gradients ? std::max(context.options.warmup, 2) : context.options.warmup;
  graph::warm_up(
      context.device, [&] { run_eagerly(context); }, context.capture_options(runs));
  check_samples();
  context.leaves.clear_gradients();  // warm_up() puts back what the first run saw, which was the user's
  for (const at::Tensor& parameter : parameters_) ++context.uses[parameter.unsafeGetTensorImpl()];
}

void CapturedMode::check_samples() const {
  for (const std::size_t i : differentiable_inputs_) {
    const auto both = std::find_if(parameters_.begin(), parameters_.end(),
                                   [&](const at::Tensor& one) { return one.unsafeGetTensorImpl() == samples_[i]; });
    if (both == parameters_.end()) continue;
    throw UsageError(
        {.what = fmt::format(
             "{} is {}, which the callable also reads by itself: its two gradients would not be added in eager's order",
             subject_.inputs.name_of(i), describe_parameter(*both, *subject_.module)),
         .where = subject_.name,
         .fix = "either pass it, or let the callable find it by itself"});
  }
}

void CapturedMode::run_eagerly(CaptureContext& context) {
  const Pass& pass = *passes_.front();
  graph::Islands islands;
  const graph::Islands::Open open_islands(islands);
  LeafFinder finder(pass.inputs);
  std::vector<at::Tensor> outputs;
  const std::uint64_t began = at::sequence_number::peek();
  call(subject_.hooks.before_forward);
  {
    std::vector<trace::OpObserver*> observers = {&finder};
    if (paths_) observers.push_back(&paths_->forward.check.next_call());
    const trace::OpStream watching(std::move(observers));
    outputs = each_once(run_forward(pass), pass);
    watching.check();
  }
  if (has_backward() && !context.options.differentiates) refuse_other_outputs();
  warmup_results_.note(outputs);
  makes_results_ = std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    return std::none_of(pass.inputs.begin(), pass.inputs.end(),
                        [&](const at::Tensor& input) { return trace::storage_of(input) == trace::storage_of(output); });
  });
  call(subject_.hooks.after_forward);
  for (const at::Tensor& leaf : finder.leaves()) note_leaf(context, leaf);
  islands.check_no_parameters();
  islands_ = islands.notes();
  if (!mode_.gradients) return;

  const std::vector<at::Tensor> gradients = ones_like_gradients(context, outputs);
  const std::vector<at::Tensor> leaves = leaves_of_uses(context, pass, outputs);
  const std::unique_ptr<WeightSplit> split = split_off_weights(context, outputs, began);
  call(subject_.hooks.before_backward);
  watched(paths_ ? &paths_->backward.check.next_call() : nullptr,
          [&] { warm_up_backward(select(outputs, differentiable_), gradients, /*retain=*/split != nullptr); });
  call(subject_.hooks.after_backward);
  (void)take_input_gradients(leaves, context.options.allow_unused_input);
  if (split != nullptr) {
    watched(paths_ ? &paths_->weights.check.next_call() : nullptr, [&] { run_weights(*split, /*retain=*/false); });
  }
  islands_ = islands.notes();  // with gradients
  if (context.options.differentiates) {
    Gradients found = take_gradients();
    if (parameters_.empty()) parameters_ = std::move(found.leaves);
  }
  note_delayed(split.get());
}

std::vector<at::Tensor> CapturedMode::run_forward(const Pass& pass) {
  const NamedScope scope(subject_.name);
  const std::vector<std::uint32_t> before = versions_of(pass.inputs);
  const at::AutoGradMode grad_mode(mode_.gradients);
  const c10::IValue value = subject_.run(pass.inputs);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (pass.inputs[i]._version() == before[i]) continue;
    throw UsageError(
        {.what = fmt::format(
             "the callable writes {} in place; the caller's tensor would not change, because the graph works on a copy",
             subject_.inputs.name_of(i)),
         .where = subject_.name,
         .fix = "let it work on input.clone(), and return the result",
         .rule = "PG902"});
  }
  for (const std::size_t i : differentiable_inputs_) {
    if (torch::autograd::impl::hooks(pass.inputs[i]).empty()) continue;
    throw UsageError({.what = fmt::format("the callable sets a hook on {}, which a graph would call for a copy of it",
                                          subject_.inputs.name_of(i)),
                      .where = subject_.name,
                      .fix = "set it outside, before the call, or on a tensor that the callable makes"});
  }
  if (!outputs_) {
    outputs_.emplace(value, "output");
    if (outputs_->leaves() == 0) {
      throw UsageError({.what = "the callable returns no tensor, so a replay would have no result",
                        .where = subject_.name,
                        .fix = "return the tensors that the caller needs, also those that it writes elsewhere"});
    }
  }
  std::vector<at::Tensor> leaves;
  if (auto difference = outputs_->flatten(value, leaves)) {
    throw UsageError({.what = fmt::format("the callable returned another structure in another run: {}", *difference),
                      .where = subject_.name,
                      .fix = "return the same structure from each call; only tensors may vary",
                      .rule = "PG505"});
  }
  return leaves;
}

// The first run says which outputs are one tensor returned twice, and which require grad. An input that is returned is the
// caller's own tensor again, whose gradients do not pass by here.
std::vector<at::Tensor> CapturedMode::each_once(const std::vector<at::Tensor>& leaves, const Pass& pass) {
  std::vector<at::Tensor> unique;
  std::vector<std::size_t> position;
  for (const at::Tensor& leaf : leaves) {
    const auto known =
        std::find_if(unique.begin(), unique.end(), [&](const at::Tensor& other) { return other.is_same(leaf); });
    position.push_back(static_cast<std::size_t>(known - unique.begin()));
    if (known == unique.end()) unique.push_back(leaf);
  }
  std::vector<std::size_t> differentiable;
  for (std::size_t i = 0; i < unique.size(); ++i) {
    const auto input = std::find_if(pass.inputs.begin(), pass.inputs.end(),
                                    [&](const at::Tensor& one) { return one.is_same(unique[i]); });
    if (input != pass.inputs.end()) {
      is_returned_[static_cast<std::size_t>(input - pass.inputs.begin())] = true;
    } else if (unique[i].requires_grad()) {
      differentiable.push_back(i);
    }
  }
  if (output_of_leaf_.empty()) {
    output_of_leaf_ = position;
    differentiable_ = mode_.gradients ? differentiable : std::vector<std::size_t>();
  } else if (position != output_of_leaf_ || (mode_.gradients && differentiable != differentiable_)) {
    refuse_other_outputs();
  }
  return unique;
}

void CapturedMode::refuse_other_outputs() const {
  throw UsageError({.what = "the callable's outputs differ in another run: other outputs require grad, or one tensor "
                            "is returned twice",
                    .where = subject_.name});
}

void CapturedMode::silence(CaptureContext& context, const at::Tensor& leaf) {
  if (has_hooks(leaf)) context.hooked.insert(leaf.unsafeGetTensorImpl());
  const auto* const meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta != nullptr && accumulator_has_hooks(*meta)) context.watched.insert(leaf.unsafeGetTensorImpl());
  context.leaves.add(leaf);
}

void CapturedMode::note_leaf(CaptureContext& context, const at::Tensor& leaf) {
  if (context.options.differentiates) silence(context, leaf);
  parameter_guard_.add(leaf);
  const bool known =
      std::any_of(leaves_.begin(), leaves_.end(), [&](const auto& other) { return other.is_same(leaf); });
  if (!known) leaves_.push_back(leaf);
}

void CapturedMode::run_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                                bool retain) const {
  if (outputs.empty()) return;
  const NamedScope scope(subject_.name + " (backward)");
  const AutocastOff no_autocast(passes_.front()->forward.device().type());
  torch::autograd::backward(outputs, gradients, retain, /*create_graph=*/false);
}

// A backward() inside the autocast region is what torch advises against and many do. The first run finds out whether it
// is the same there.
void CapturedMode::warm_up_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                                    bool retain) {
  if (!ambient_.autocast) return run_backward(outputs, gradients, retain);
  const bool in_region = !backward_in_region_;
  BackwardLog& log = (in_region ? backward_in_region_ : backward_outside_).emplace();
  const trace::OpStream watching({&log});
  if (!in_region) return run_backward(outputs, gradients, retain);
  if (outputs.empty()) return;
  const NamedScope scope(subject_.name + " (backward)");
  torch::autograd::backward(outputs, gradients, retain, /*create_graph=*/false);
}

void CapturedMode::run_weights(WeightSplit& split, bool retain) const {
  const NamedScope scope(subject_.name + " (weights)");
  const AutocastOff no_autocast(passes_.front()->forward.device().type());
  split.run(retain);
}

// The passes of other slots do what the first one does.
void CapturedMode::record_as_warmed_up(WarmedUpPath* path, const std::function<void()>& run) {
  if (path == nullptr || path->is_captured) return run();
  watched(&path->check.recording(), run);
  path->is_captured = true;
  if (auto difference = path->check.difference()) throw CaptureError(*std::move(difference));
}

void CapturedMode::capture_forward(CaptureContext& context, std::size_t slot) {
  Pass& pass = *passes_[slot];
  pass.began = at::sequence_number::peek();
  std::vector<at::Tensor> outputs;
  call(subject_.hooks.before_forward);
  const std::shared_ptr<void> reservation =
      context.any_order ? context.pool.state()->reserve_used_memory() : std::shared_ptr<void>();
  CaptureOptions options = context.capture_options(0);
  options.inputs = pass.inputs;
  options.allow_empty = !makes_results_;
  const graph::RunToPlanBy no_plan(graph::RunToPlanBy::none());
  pass.forward.capture(
      [&] {
        graph::Islands islands(islands_);
        const graph::Islands::Open open_islands(islands);
        record_as_warmed_up(paths_ ? &paths_->forward : nullptr, [&] { outputs = each_once(run_forward(pass), pass); });
        if (origins_.are_known()) return;
        origins_.find(outputs, pass.inputs, [this](const at::Tensor& output) { return warmup_results_.holds(output); });
        check_no_leaf(outputs, pass.inputs);
      },
      options);
  call(subject_.hooks.after_forward);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    pass.outputs.push_back(static_output(outputs[i], origins_.are_made_by_the_graph(i)));
  }
  pass.regions = origins_.regions_of(pass.outputs);
  pass.input_versions = versions_of(pass.inputs);
  pass.output_versions = versions_of(pass.outputs);
  if (has_backward()) pass.history = std::move(outputs);
}

// As a result of the graph it would be another tensor, without a gradient of its own. Inputs are a view of themselves.
void CapturedMode::check_no_leaf(const std::vector<at::Tensor>& outputs, std::span<const at::Tensor> inputs) const {
  for (const std::size_t i : differentiable_) {
    const bool is_input =
        std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& one) { return one.is_same(outputs[i]); });
    if (!outputs[i].is_leaf() || is_input) continue;
    const auto leaf = std::find(output_of_leaf_.begin(), output_of_leaf_.end(), i) - output_of_leaf_.begin();
    throw UsageError({.what = fmt::format("{} is {} itself, which a replay cannot return: a graph returns another "
                                          "tensor for everything that has a gradient",
                                          outputs_->name_of(static_cast<std::size_t>(leaf)),
                                          describe_parameter(outputs[i], *subject_.module)),
                      .where = subject_.name,
                      .fix = "return a view of it (view_as), or use the parameter itself in the caller"});
  }
}

// With any order of calls, the activations stay in place until all is captured, and input gradients, which are read after
// the replay, get memory outside of the pool, where no other graph writes.
void CapturedMode::capture_backward(CaptureContext& context, std::size_t slot) {
  if (!has_backward()) return;
  Pass& pass = *passes_[slot];
  if (reach_.empty()) find_what_outputs_reach(pass);
  std::vector<at::Tensor> fixed;
  if (context.any_order) {
    const trace::QuietScope quiet;
    for (const std::size_t i : input_uses_) fixed.push_back(at::empty_like(pass.inputs[i]));
  }
  if (output_gradients_.empty()) make_output_gradients(context, pass);
  // What it leaves for later is a result, too.
  const std::shared_ptr<void> reservation =
      context.any_order && delays_ ? context.pool.state()->reserve_used_memory() : std::shared_ptr<void>();
  call(subject_.hooks.before_backward);
  CaptureOptions options = context.capture_options(0);
  options.set_generators = false;  // a state would come from the forward pass, a graph of its own
  options.inputs = output_gradients_;
  const graph::RunToPlanBy no_plan(graph::RunToPlanBy::none());
  pass.backward.capture(
      [&] {
        // Here, as autograd would lead gradients of leaves that were made on another stream over to that.
        const std::vector<at::Tensor> leaves = leaves_of_uses(context, pass, pass.history);
        pass.split = split_off_weights(context, pass.history, pass.began);
        record_as_warmed_up(paths_ ? &paths_->backward : nullptr, [&] {
          run_backward(select(pass.history, differentiable_), output_gradients_,
                       context.any_order || context.options.retain_graph || delays_);
        });
        note_delayed(pass.split.get());
        if (pass.split != nullptr) pass.split->set_apart(output_gradients_);
        now_.record(take_parameter_gradients(/*later=*/false));
        pass.input_gradients = take_input_gradients(leaves, context.options.allow_unused_input);
        if (!context.any_order) set_apart(pass.input_gradients, output_gradients_);
        for (std::size_t use = 0; use < fixed.size(); ++use) {
          if (!pass.input_gradients[use].defined()) continue;
          const at::NoGradGuard no_grad;
          pass.input_gradients[use] = fixed[use].copy_(pass.input_gradients[use]);
        }
      },
      options);
  call(subject_.hooks.after_backward);
  if (delays_) return;
  pass.split.reset();  // where no gradient flows into its products
  if (!context.any_order) pass.history.clear();
  if (backward_reads_input_.empty()) find_what_backward_reads(pass);
}

// What flows into the products stays in place as the activations do.
void CapturedMode::capture_weights(CaptureContext& context, std::size_t slot) {
  Pass& pass = *passes_[slot];
  if (pass.split == nullptr) return;
  CaptureOptions options = context.capture_options(0);
  options.set_generators = false;
  const bool retain = context.any_order || context.options.retain_graph;
  const graph::RunToPlanBy no_plan(graph::RunToPlanBy::none());
  pass.weights.capture(
      [&] {
        record_as_warmed_up(paths_ ? &paths_->weights : nullptr, [&] { run_weights(*pass.split, retain); });
        later_.record(take_parameter_gradients(/*later=*/true));
      },
      options);
  if (!context.any_order) {
    pass.split.reset();
    pass.history.clear();
  }
  if (backward_reads_input_.empty()) find_what_backward_reads(pass);
}

void CapturedMode::finish() {
  for (const auto& pass : passes_) {
    pass->split.reset();
    pass->history.clear();
  }
  warmup_results_ = {};
  paths_.reset();
  backward_is_same_in_region_ = backward_in_region_ && backward_outside_ && *backward_in_region_ == *backward_outside_;
  backward_in_region_.reset();
  backward_outside_.reset();
  if (later_.direct) later_.direct->finish();
  if (now_.direct) now_.direct->finish();
  if (now_.direct || delays_) enter_process_list();
}

void CapturedMode::release() noexcept {
  leave_process_list();
  for (const auto& pass : passes_) {
    pass->forward.reset();
    pass->backward.reset();
    pass->weights.reset();
    pass->owes = 0;
    for (auto* tensors : {&pass->inputs, &pass->outputs, &pass->regions, &pass->input_gradients, &pass->history}) {
      tensors->clear();
    }
    pass->handed_out.clear();
  }
  output_gradients_.clear();
  now_.release();
  later_.release();
}

}  // namespace pianola::callable
