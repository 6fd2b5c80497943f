// The part of CapturedMode that says which gradients go in and out of a backward pass, and how they lie.
#include <pianola/callable/captured_mode.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/leaf_uses.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

bool is_gradient_like(const at::Tensor& gradient, const at::Tensor& output, at::IntArrayRef strides) {
  return gradient.sizes() == output.sizes() && gradient.scalar_type() == output.scalar_type() &&
         gradient.strides() == strides;
}

bool is_dense_layout(const at::Tensor& tensor, const std::vector<std::int64_t>& strides) {
  if (strides.size() != static_cast<std::size_t>(tensor.dim())) return false;
  const trace::QuietScope quiet;
  return at::empty_strided(tensor.sizes(), strides, tensor.options().device(c10::kMeta)).is_non_overlapping_and_dense();
}

}  // namespace

at::Tensor CaptureContext::output_gradient_like(const at::Tensor& output, at::IntArrayRef strides,
                                                std::size_t ordinal) {
  for (const at::Tensor& known : output_gradients) {
    if (is_gradient_like(known, output, strides) && ordinal-- == 0) return known;
  }
  const trace::QuietScope quiet;
  const at::TensorOptions like = output.options().requires_grad(false);
  output_gradients.push_back(at::empty_strided(output.sizes(), strides, like).zero_());
  return output_gradients.back();
}

// As somebody has seen it; else as the output lies, which is what elementwise operations make of its gradient.
std::vector<std::int64_t> CapturedMode::gradient_strides(const CaptureContext& context, const at::Tensor& output,
                                                         std::size_t position) const {
  const std::vector<std::vector<std::int64_t>>& seen = context.options.gradient_strides;
  for (std::size_t leaf = 0; leaf < std::min(seen.size(), output_of_leaf_.size()); ++leaf) {
    if (output_of_leaf_[leaf] != position || seen[leaf].empty()) continue;
    if (is_dense_layout(output, seen[leaf])) return seen[leaf];
    throw UsageError({.what = fmt::format("gradient_strides of {} are ({}), which is no dense layout of its shape",
                                          outputs_->name_of(leaf), fmt::join(seen[leaf], ", ")),
                      .where = subject_.name,
                      .fix = "give the strides of a tensor of that shape whose elements lie next to each other"});
  }
  return output.is_non_overlapping_and_dense() ? output.strides().vec()
                                               : at::IntArrayRef(c10::contiguous_strides(output.sizes())).vec();
}

// For warm-up.
std::vector<at::Tensor> CapturedMode::ones_like_gradients(const CaptureContext& context,
                                                          const std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> gradients;
  for (const std::size_t i : differentiable_) {
    const at::Tensor& output = outputs[i];
    const at::TensorOptions like = output.options().requires_grad(false);
    gradients.push_back(at::empty_strided(output.sizes(), gradient_strides(context, output, i), like).fill_(1));
  }
  return gradients;
}

void CapturedMode::make_output_gradients(CaptureContext& context, const Pass& pass) {
  for (const std::size_t i : differentiable_) {
    const at::Tensor& output = pass.outputs[i];
    const std::vector<std::int64_t> strides = gradient_strides(context, output, i);
    const auto like = std::count_if(output_gradients_.begin(), output_gradients_.end(),
                                    [&](const at::Tensor& other) { return is_gradient_like(other, output, strides); });
    output_gradients_.push_back(context.output_gradient_like(output, strides, static_cast<std::size_t>(like)));
  }
}

// Through backward() and `.grad`, not through grad(): a recomputed block differentiates its parameters on its own.
CapturedMode::Gradients CapturedMode::take_gradients() const {
  Gradients result;
  for (const at::Tensor& leaf : leaves_) {
    at::Tensor gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided) {
      throw UnsupportedError({.what = fmt::format("the gradient of {} is sparse; a graph cannot write it",
                                                  describe_parameter(leaf, *subject_.module)),
                              .where = subject_.name,
                              .fix = "use dense gradients (EmbeddingOptions::sparse(false)), or leave it out"});
    }
    result.leaves.push_back(leaf);
    result.values.push_back(std::move(gradient));
  }
  return result;
}

// Of one of the two graphs, for each parameter: undefined where the other one computes it. Both lists are in the order of
// leaves_.
std::vector<at::Tensor> CapturedMode::take_parameter_gradients(bool later) const {
  Gradients computed = take_gradients();
  std::vector<at::Tensor> values(parameters_.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < parameters_.size() && next < computed.leaves.size(); ++i) {
    if (is_delayed_[i] == later && computed.leaves[next].is_same(parameters_[i])) {
      values[i] = std::move(computed.values[next++]);
    }
  }
  const auto expected = static_cast<std::size_t>(std::count(is_delayed_.begin(), is_delayed_.end(), later));
  if (next == expected && computed.leaves.size() == expected) return values;
  throw CaptureError(
      {.what = fmt::format("the backward pass gave gradients to {} parameters under capture, but to {} in warm-up",
                           computed.leaves.size(), expected),
       .where = subject_.name});
}

// The history behind the outputs of one run; nullptr where nothing of it can wait.
std::unique_ptr<WeightSplit> CapturedMode::split_off_weights(const CaptureContext& context,
                                                             const std::vector<at::Tensor>& outputs,
                                                             std::uint64_t began) const {
  if (!subject_.delays_weights || !has_backward()) return nullptr;
  WeightSplit::Leaves may_wait;
  for (const at::Tensor& leaf : leaves_) {
    if (context.watched.count(leaf.unsafeGetTensorImpl()) == 0) may_wait.insert(leaf.unsafeGetTensorImpl());
  }
  for (const at::Tensor& named : context.options.through_autograd) may_wait.erase(named.unsafeGetTensorImpl());
  auto split = std::make_unique<WeightSplit>(select(outputs, differentiable_), may_wait, began);
  return split->weights().empty() ? nullptr : std::move(split);
}

void CapturedMode::note_delayed(const WeightSplit* split) {
  std::vector<bool> is_delayed(parameters_.size());
  for (std::size_t i = 0; split != nullptr && i < parameters_.size(); ++i) {
    is_delayed[i] = std::any_of(split->weights().begin(), split->weights().end(),
                                [&](const at::Tensor& weight) { return weight.is_same(parameters_[i]); });
  }
  if (!is_delayed_.empty() && is_delayed != is_delayed_) {
    throw UsageError(
        {.what = "the callable reads its weights in other ways in another run, so that other gradients can wait",
         .where = subject_.name,
         .fix = "leave delay_weight_gradients off",
         .rule = "PG505"});
  }
  is_delayed_ = std::move(is_delayed);
}

// Of such a weight eager adds up the gradients of all callables first, and then adds the sum to `p.grad`.
void CapturedMode::check_delayed(const CaptureContext& context) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_delayed_[i] || context.uses.find(parameters_[i].unsafeGetTensorImpl())->second < 2) continue;
    throw UsageError(
        {.what = fmt::format("{} belongs to several callables: their delayed gradients would not be added in "
                             "eager's order",
                             describe_parameter(parameters_[i], *subject_.module)),
         .where = subject_.name,
         .fix = "name it in through_autograd: its gradient is then computed at once"});
  }
}

// Which tensors the backward pass leaves the gradients of input_uses_ in. An input without a use stands for itself.
std::vector<at::Tensor> CapturedMode::leaves_of_uses(const CaptureContext& context, const Pass& pass,
                                                     const std::vector<at::Tensor>& outputs) {
  if (!context.options.gradient_per_use) {
    input_uses_ = differentiable_inputs_;
    return select(pass.inputs, input_uses_);
  }
  const trace::QuietScope quiet;
  std::vector<graph::LeafUse> uses = graph::uses_of_leaves(outputs);
  std::stable_sort(uses.begin(), uses.end(), [](const auto& one, const auto& other) { return one.at > other.at; });
  std::vector<std::size_t> inputs;
  std::vector<at::Tensor> leaves;
  for (const graph::LeafUse& use : uses) {
    const auto input = std::find_if(differentiable_inputs_.begin(), differentiable_inputs_.end(),
                                    [&](std::size_t i) { return use.leaf.is_same(pass.inputs[i]); });
    if (input == differentiable_inputs_.end()) continue;
    inputs.push_back(*input);
    leaves.push_back(use.split_off());
  }
  for (const std::size_t i : differentiable_inputs_) {
    if (std::find(inputs.begin(), inputs.end(), i) != inputs.end()) continue;
    inputs.push_back(i);
    leaves.push_back(pass.inputs[i]);
  }
  if (!input_uses_.empty() && inputs != input_uses_) {
    throw UsageError({.what = "the callable uses its inputs another number of times in another run",
                      .where = subject_.name,
                      .rule = "PG505"});
  }
  input_uses_ = std::move(inputs);
  return leaves;
}

std::vector<at::Tensor> CapturedMode::take_input_gradients(const std::vector<at::Tensor>& leaves,
                                                           bool allow_unused) const {
  std::vector<at::Tensor> result;
  for (std::size_t use = 0; use < leaves.size(); ++use) {
    result.push_back(std::exchange(leaves[use].mutable_grad(), at::Tensor()));
    if (result.back().defined() || allow_unused || is_returned_[input_uses_[use]]) continue;
    throw UsageError({.what = fmt::format("{} requires grad, but no output depends on it",
                                          subject_.inputs.name_of(input_uses_[use])),
                      .where = subject_.name,
                      .fix = "pass a sample that does not require grad, or set allow_unused_input"});
  }
  return result;
}

bool CapturedMode::goes_through_autograd(const CaptureContext& context, const at::Tensor& parameter) const {
  if (context.options.grad != GradPolicy::accumulate) return true;
  const c10::TensorImpl* impl = parameter.unsafeGetTensorImpl();
  const auto& named = context.options.through_autograd;
  return context.hooked.count(impl) != 0 || context.uses.find(impl)->second > 1 ||
         std::any_of(named.begin(), named.end(), [&](const at::Tensor& other) { return other.is_same(parameter); });
}

void CapturedMode::decide_gradients(const CaptureContext& context) {
  check_delayed(context);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    GradientTargets& targets = is_delayed_[i] ? later_ : now_;
    (goes_through_autograd(context, parameters_[i]) ? targets.routed_of : targets.direct_of).push_back(i);
  }
  delays_ = !later_.direct_of.empty() || !later_.routed_of.empty();
  const trace::QuietScope quiet;
  for (GradientTargets* targets : {&now_, &later_}) {
    if (!targets->direct_of.empty()) {
      std::vector<at::Tensor> before;
      for (const std::size_t i : targets->direct_of) before.push_back(context.leaves.gradient_before(parameters_[i]));
      targets->direct.emplace(select(parameters_, targets->direct_of), before, context.gradients);
    }
    if (!targets->routed_of.empty()) {
      const bool alias = context.options.grad == GradPolicy::alias;
      targets->routed.emplace(select(parameters_, targets->routed_of), alias ? HandOut::aliases : HandOut::copies);
    }
  }
}

}  // namespace pianola::callable
