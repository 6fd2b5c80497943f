#include <pianola/callable/captured_mode.hpp>

#include <pianola/callable/backward_node.hpp>
#include <pianola/core/error.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

struct Bytes {
  const std::byte* begin;
  const std::byte* end;
};
Bytes bytes_of(const at::Tensor& tensor) {
  const std::byte* begin = trace::address_of(tensor);
  return {begin, begin + trace::span_bytes_of(tensor)};
}
bool overlap(const Bytes& a, const Bytes& b) { return a.begin < b.end && b.begin < a.end; }

// Of any operation that reads the tensor's bytes.
std::vector<bool> which_are_read(const OpTrace& trace, const std::vector<at::Tensor>& tensors) {
  std::vector<bool> result(tensors.size());
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& input : trace.inputs(op)) {
      const auto* begin = static_cast<const std::byte*>(input.address);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (overlap(bytes_of(tensors[i]), {begin, begin + input.span_bytes})) result[i] = true;
      }
    }
  }
  return result;
}

// The leaves that gradients of this tensor are accumulated in.
ska::flat_hash_set<const c10::TensorImpl*> leaves_behind(const at::Tensor& tensor) {
  ska::flat_hash_set<const c10::TensorImpl*> leaves;
  ska::flat_hash_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open = {torch::autograd::impl::gradient_edge(tensor).function.get()};
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      leaves.insert(leaf->variable.unsafeGetTensorImpl());
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return leaves;
}

std::optional<std::size_t> first_written(const std::vector<at::Tensor>& tensors,
                                         const std::vector<std::uint32_t>& versions, const std::vector<bool>& which) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (which[i] && tensors[i]._version() != versions[i]) return i;
  }
  return std::nullopt;
}

}  // namespace

std::string in_words(Mode mode) {
  return fmt::format("in {} mode {} gradients", mode.training ? "training" : "evaluation",
                     mode.gradients ? "with" : "without");
}

Subject::Subject(Callable callable_, const std::vector<c10::IValue>& sample, std::string name_)
    : callable(std::move(callable_)),
      module(callable.view()),
      inputs(c10::ivalue::Tuple::create(sample), "input"),
      name(std::move(name_)) {}

c10::IValue Subject::run(std::span<const at::Tensor> leaves) const {
  return callable(inputs.rebuild(leaves).toTupleRef().elements().vec());
}

bool CapturedMode::accepts(std::span<const at::Tensor> inputs) const {
  if (inputs.size() != input_guards_.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!input_guards_[i].accepts(inputs[i])) return false;
  }
  for (const std::size_t i : differentiable_inputs_) {
    if (is_parameter(inputs[i])) return false;
  }
  return Ambient::current(passes_.front()->forward.device().type()) == ambient_ && subject_.module->has_flags(flags_) &&
         parameter_guard_.intact() && subject_.module->has_its_parameters() && now_.hooked_accumulator() == nullptr &&
         (!delays_ || later_.watched_accumulator() == nullptr);
}

// Eager adds up both gradients of such a tensor in the order of all operations that read it; a graph knows the order of
// its own only.
bool CapturedMode::is_parameter(const at::Tensor& input) const {
  if (!input.is_leaf()) [[likely]]
    return false;
  return std::any_of(parameters_.begin(), parameters_.end(), [&](const at::Tensor& one) { return one.is_same(input); });
}

std::vector<std::string> CapturedMode::differences(std::span<const at::Tensor> inputs) const {
  std::vector<std::string> result;
  if (inputs.size() != input_guards_.size()) {
    result.push_back(fmt::format("inputs: captured {} tensors, received {}", input_guards_.size(), inputs.size()));
  }
  for (std::size_t i = 0; i < std::min(inputs.size(), input_guards_.size()); ++i) {
    for (const std::string& difference : input_guards_[i].differences(inputs[i])) {
      result.push_back(fmt::format("{}: {}", subject_.inputs.name_of(i), difference));
    }
  }
  for (const std::size_t i : differentiable_inputs_) {
    if (i >= inputs.size() || !inputs[i].defined() || !is_parameter(inputs[i])) continue;
    result.push_back(fmt::format("{}: it is {}, which the callable also reads by itself", subject_.inputs.name_of(i),
                                 describe_parameter(inputs[i], *subject_.module)));
  }
  const auto append = [&](std::vector<std::string> more) { result.insert(result.end(), more.begin(), more.end()); };
  append(ambient_.differences(Ambient::current(passes_.front()->forward.device().type())));
  for (const std::string& module : subject_.module->differing_flags(flags_)) {
    const std::string which = module.empty() ? "the module itself" : fmt::format("'{}'", module);
    result.push_back(fmt::format("training flag of {}: it was switched since the capture", which));
  }
  append(parameter_guard_.differences(*subject_.module));
  for (const at::Tensor* hooked : {now_.hooked_accumulator(), later_.watched_accumulator()}) {
    if (hooked == nullptr) continue;
    result.push_back(fmt::format(
        "{}: its gradient is watched since the capture (by DistributedDataParallel, say), but the graph "
        "adds gradients unseen, or later: wrap the module first, then graph it, or set GradPolicy::clone{}",
        describe_parameter(*hooked, *subject_.module), delays_ ? " and leave delay_weight_gradients off" : ""));
  }
  return result;
}

// Of a pass that reads these: what was written since its forward.
std::optional<Diagnosis> CapturedMode::reads_offence(const Pass& pass, const std::vector<bool>& inputs,
                                                     const std::vector<bool>& outputs, bool later) const {
  const auto offence = [&](const char* kind, const std::string& which) {
    return Diagnosis{.what = fmt::format("{} {} was written after the forward pass, and {} what it held; {}", kind,
                                         which, later ? "the gradients of weights need" : "the backward pass needs",
                                         later ? "these gradients are given up" : "nothing was launched"),
                     .where = subject_.name,
                     .fix = later
                                ? "write to a clone() of it, or call backward_weights() (backward_dw() in Python) first"
                                : "write to a clone() of it, or call backward() first"};
  };
  if (const auto i = first_written(pass.inputs, pass.input_versions, inputs)) {
    return offence("the static buffer of", subject_.inputs.name_of(*i));
  }
  if (const auto i = first_written(pass.outputs, pass.output_versions, outputs)) {
    const auto leaf = std::find(output_of_leaf_.begin(), output_of_leaf_.end(), *i) - output_of_leaf_.begin();
    return offence("the tensor of", outputs_->name_of(static_cast<std::size_t>(leaf)));
  }
  return std::nullopt;
}

std::optional<Diagnosis> CapturedMode::backward_offence(const Pass& pass, bool steady) const {
  if (pass.owes != 0) {
    return Diagnosis{.what =
                         "backward() was called again before the gradients of weights that the last one left for "
                         "later were computed, which need what it left; nothing was launched",
                     .where = subject_.name,
                     .fix = "call backward_weights() (backward_dw() in Python) between them"};
  }
  if (auto offence = reads_offence(pass, backward_reads_input_, backward_reads_output_, /*later=*/false))
    return offence;
  Ambient now = Ambient::current(passes_.front()->forward.device().type());
  now.function_modes = {};       // no operation of a backward pass asks them
  now.region = ambient_.region;  // what is recomputed ran in that of the forward pass
  if (may_run_backward_in(now)) {
    if (auto offence = hook_offence(now_, steady); offence || !delays_) return offence;
    return hook_offence(later_, later_.is_steady());  // before half of the gradients are there
  }
  if (now.autocast) {
    return Diagnosis{.what =
                         "backward() was called in an autocast region; the backward graph was captured without one, "
                         "and eager might choose other dtypes here; nothing was launched",
                     .where = subject_.name,
                     .fix = "call backward() after the autocast region, as torch advises"};
  }
  return Diagnosis{.what = fmt::format("backward() differs from what was captured; nothing was launched\n    {}",
                                       fmt::join(ambient_in_backward_.differences(now), "\n    ")),
                   .where = subject_.name,
                   .fix = "leave these settings as they were in the forward pass"};
}

// In the region of the forward pass too, where warm-up saw no difference.
bool CapturedMode::may_run_backward_in(const Ambient& now) const {
  return now == ambient_in_backward_ || (backward_is_same_in_region_ && now == ambient_);
}

std::optional<Diagnosis> CapturedMode::lost_weights(const Pass& pass) const {
  if (auto offence = reads_offence(pass, weights_read_input_, weights_read_output_, /*later=*/true)) return offence;
  for (std::size_t k = 0; k < weights_read_.size(); ++k) {
    if (weights_read_[k]._version() == pass.weight_versions[k]) continue;
    return Diagnosis{
        .what = fmt::format("{} was written after backward(), and the gradients of weights need what it held; "
                            "these gradients are given up",
                            describe_parameter(weights_read_[k], *subject_.module)),
        .where = subject_.name,
        .fix = "call backward_weights() (backward_dw() in Python) before the optimizer's step"};
  }
  return std::nullopt;
}

std::optional<Diagnosis> CapturedMode::weights_offence(bool steady) const {
  if (!later_.routed) return hook_offence(later_, steady);
  const auto& parameters = later_.routed->parameters();
  const auto frozen =
      std::find_if(parameters.begin(), parameters.end(), [](const at::Tensor& one) { return !one.requires_grad(); });
  if (frozen == parameters.end()) return hook_offence(later_, steady);
  return Diagnosis{
      .what = fmt::format("{} was frozen after backward(), so that autograd would drop its gradient; nothing was "
                          "launched",
                          describe_parameter(*frozen, *subject_.module)),
      .where = subject_.name,
      .fix = "call backward_weights() (backward_dw() in Python) first, and freeze it then"};
}

std::optional<Diagnosis> CapturedMode::hook_offence(const GradientTargets& targets, bool steady) const {
  const at::Tensor* hooked = !steady && targets.direct ? targets.direct->hooked() : nullptr;
  if (hooked != nullptr) {
    return Diagnosis{
        .what = fmt::format(
            "{} got a hook since the capture, which the backward graph would not call; nothing was launched",
            describe_parameter(*hooked, *subject_.module)),
        .where = subject_.name,
        .fix =
            "register hooks before make_graphed_callable, name the parameter in "
            "CallableOptions::through_autograd, or set GradPolicy::clone",
        .rule = "PG1004"};
  }
  return std::nullopt;
}

std::size_t CapturedMode::static_bytes() const {
  std::size_t bytes = now_.bytes() + later_.bytes();
  for (const auto& pass : passes_) {
    for (const at::Tensor& input : pass->inputs) bytes += input.nbytes();
  }
  return bytes;
}

void CapturedMode::find_what_outputs_reach(const Pass& pass) {
  std::vector<bool> found(parameters_.size());
  for (const std::size_t output : differentiable_) {
    const auto leaves = leaves_behind(pass.history[output]);
    const auto which = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<bool> result;
      for (const at::Tensor& tensor : tensors) result.push_back(leaves.count(tensor.unsafeGetTensorImpl()) != 0);
      return result;
    };
    reach_.push_back({.inputs = which(pass.inputs), .parameters = which(parameters_)});
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = found[i] || reach_.back().parameters[i];
  }
  // A recomputed block differentiates parameters that no walk of the graph finds: take them for always reached.
  for (Reach& reach : reach_) {
    for (std::size_t i = 0; i < found.size(); ++i) reach.parameters[i] = reach.parameters[i] || !found[i];
  }
}

CapturedMode::Unreached CapturedMode::unreached(std::span<const at::Tensor> output_gradients) const {
  const auto is_reached = [&](std::vector<bool> Reach::*kind, std::size_t i) {
    for (std::size_t output = 0; output < reach_.size(); ++output) {
      if (output_gradients[output].defined() && (reach_[output].*kind)[i]) return true;
    }
    return false;
  };
  const auto unreached_of = [&](const std::vector<std::size_t>& parameters) {
    std::vector<std::size_t> positions;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (!is_reached(&Reach::parameters, parameters[k])) positions.push_back(k);
    }
    return positions;
  };
  Unreached result{.direct = unreached_of(now_.direct_of),
                   .routed = unreached_of(now_.routed_of),
                   .inputs = {},
                   .later_direct = unreached_of(later_.direct_of),
                   .later_routed = unreached_of(later_.routed_of)};
  for (const std::size_t i : differentiable_inputs_) {
    if (!is_reached(&Reach::inputs, i)) result.inputs.push_back(i);
  }
  return result;
}

namespace {

// All that have parameters whose gradients autograd does not see.
struct Modes {
  std::mutex mutex;
  ska::flat_hash_set<CapturedMode*> alive;
};

Modes& modes() {
  static Modes* const modes = new Modes;  // callables may outlive any static object
  return *modes;
}

}  // namespace

CapturedMode::~CapturedMode() { leave_process_list(); }

void CapturedMode::enter_process_list() {
  const std::lock_guard lock(modes().mutex);
  modes().alive.insert(this);
}

void CapturedMode::leave_process_list() noexcept {
  const std::lock_guard lock(modes().mutex);
  modes().alive.erase(this);
}

void CapturedMode::note_call(Pass& pass, const torch_abi::NodeRef<>& node) {
  if (!now_.direct && !delays_) return;
  const std::lock_guard lock(calls_);
  pass.node = torch_abi::WeakNodeRef(node);
}

void CapturedMode::expose(const ska::flat_hash_set<const c10::TensorImpl*>& parameters,
                          std::vector<torch_abi::NodeRef<>>& in_use) {
  const std::lock_guard lock(calls_);
  for (const auto& pass : passes_) {
    auto* const node = static_cast<BackwardNode*>(in_use.emplace_back(pass->node.lock()).get());
    if (node == nullptr) continue;
    for (const std::vector<std::size_t>* delayed : {&later_.direct_of, &later_.routed_of}) {
      for (const std::size_t i : *delayed) {
        if (pass->holder != 0 && parameters.count(parameters_[i].unsafeGetTensorImpl()) != 0)
          refuse_by_name(parameters_[i]);
      }
    }
    if (!now_.direct) continue;
    for (std::size_t i = 0; i < now_.direct->parameters().size(); ++i) {
      const at::Tensor& parameter = now_.direct->parameters()[i];
      if (parameters.count(parameter.unsafeGetTensorImpl()) == 0) continue;
      node->expose(i, torch::autograd::impl::gradient_edge(parameter));
    }
  }
}

void CapturedMode::refuse_by_name(const at::Tensor& parameter) const {
  throw UsageError(
      {.what = fmt::format("the gradient of {} was asked for by name, which a backward pass of this callable "
                           "leaves for later",
                           describe_parameter(parameter, *subject_.module)),
       .where = subject_.name,
       .fix = "call backward() without names, and then backward_weights() (backward_dw() in Python); or name it "
              "in through_autograd: its gradient is then computed at once"});
}

void CapturedMode::expose_in_all(std::span<const at::Tensor> parameters) {
  ska::flat_hash_set<const c10::TensorImpl*> wanted;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.is_leaf()) wanted.insert(parameter.unsafeGetTensorImpl());
  }
  if (wanted.empty()) return;
  std::vector<torch_abi::NodeRef<>> in_use;  // the last one of a callable takes the list's lock when it goes
  const std::lock_guard lock(modes().mutex);
  for (CapturedMode* mode : modes().alive) mode->expose(wanted, in_use);
}

void CapturedMode::find_what_backward_reads(const Pass& pass) {
  const OpTrace& trace = *pass.backward.trace();
  backward_reads_input_ = which_are_read(trace, pass.inputs);
  backward_reads_output_ = which_are_read(trace, pass.outputs);
  if (!pass.weights.captured()) return;
  weights_read_input_ = which_are_read(*pass.weights.trace(), pass.inputs);
  weights_read_output_ = which_are_read(*pass.weights.trace(), pass.outputs);
  weights_read_.clear();
  const std::vector<bool> read = which_are_read(*pass.weights.trace(), leaves_);
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    if (read[i]) weights_read_.push_back(leaves_[i]);
  }
}

}  // namespace pianola::callable
