#include <pianola/callable/forward_gradients.hpp>

#include <pianola/callable/call.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::callable {
namespace {

Diagnosis refuse_new_gradient(const at::Tensor& leaf) {
  return {.what = fmt::format("the function sets the gradient of {}, and its backward pass runs outside of it; a "
                              "replay would not set it again",
                              trace::describe(leaf)),
          .fix = "set it after the call, or let the function run the backward pass",
          .rule = "PG803"};
}

Diagnosis refuse_input(std::size_t input) {
  return {.what = fmt::format("the function drops the gradient of input {}; a replay works on a copy, and would not",
                              input),
          .fix = "drop it before the call",
          .rule = "PG803"};
}

Diagnosis refuse_result(std::size_t result) {
  return {.what = fmt::format("result {} is the gradient of a parameter, which a replay would not find", result),
          .fix = "read gradients outside of the function",
          .rule = "PG401"};
}

using Leaves = ska::flat_hash_set<const c10::TensorImpl*>;
using Memory = ska::flat_hash_set<const c10::StorageImpl*>;

torch::autograd::AutogradMeta* meta_of(const at::Tensor& leaf) {
  return torch::autograd::impl::materialize_autograd_meta(leaf);
}

bool is_defined(const trace::WeakTensor& tensor) {
  return tensor._unsafe_get_target() != c10::UndefinedTensorImpl::singleton();
}

std::optional<at::Tensor> living(const trace::WeakTensor& weak) {
  auto alive = weak.lock();
  return alive ? std::optional<at::Tensor>(std::move(alive)) : std::nullopt;
}

template <typename Visit>
void for_each_living(const std::vector<trace::WeakTensor>& tensors, const Visit& visit) {
  for (const trace::WeakTensor& one : tensors) {
    if (const auto tensor = living(one)) visit(*tensor);
  }
}

}  // namespace

GradientsBefore::GradientsBefore(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    all_.push_back({.leaf = trace::WeakTensor(leaf.getIntrusivePtr()),
                    .gradient = trace::WeakTensor(leaf.grad().getIntrusivePtr())});
  }
}

GradientChanges::GradientChanges(const GradientsBefore& before, const HostEffects& effects,
                                 std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& leaves,
                                 const std::vector<at::Tensor>& results) {
  refuse_inputs(before, inputs);
  Leaves known;
  for (const at::Tensor& input : inputs) known.insert(input.unsafeGetTensorImpl());
  for_each_living(effects.cleared_gradients, [&](const at::Tensor& leaf) {
    if (known.insert(leaf.unsafeGetTensorImpl()).second) note_cleared(leaf);
  });
  Leaves stored;
  if (effects.stored_gradients) {
    for (const trace::WeakTensor& leaf : *effects.stored_gradients) stored.insert(leaf._unsafe_get_target());
  }
  for (const GradientsBefore::One& one : before.all()) {
    const bool is_told = stored.count(one.leaf._unsafe_get_target()) != 0;
    if (!is_told && effects.stored_gradients) continue;
    if (known.insert(one.leaf._unsafe_get_target()).second) compare(one, is_told);
  }
  if (effects.stored_gradients) {
    for_each_living(*effects.stored_gradients, [&](const at::Tensor& leaf) {
      if (known.insert(leaf.unsafeGetTensorImpl()).second) note_new(leaf);
    });
  }
  refuse_results(before, leaves, results);
}

void GradientChanges::refuse_inputs(const GradientsBefore& before, std::span<const at::Tensor> inputs) {
  for (const GradientsBefore::One& one : before.all()) {
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const at::Tensor& given) {
      return given.unsafeGetTensorImpl() == one.leaf._unsafe_get_target();
    });
    if (input == inputs.end() || !is_defined(one.gradient) || input->grad().defined()) continue;
    refuse(refuse_input(static_cast<std::size_t>(input - inputs.begin())));
  }
}

void GradientChanges::note_cleared(const at::Tensor& leaf) {
  if (leaf.grad().defined()) return refuse(refuse_new_gradient(leaf));
  leaves_.push_back(
      {.tensor = trace::WeakTensor(leaf.getIntrusivePtr()), .saw_none = true, .saw_defined = true, .drops = true});
}

void GradientChanges::compare(const GradientsBefore::One& before, bool is_told) {
  const std::optional<at::Tensor> leaf = living(before.leaf);
  if (!leaf) return;
  const at::Tensor& now = meta_of(*leaf)->grad_;
  const bool was_defined = is_defined(before.gradient);
  if (was_defined && !now.defined()) {
    leaves_.push_back({.tensor = before.leaf, .saw_none = true, .saw_defined = true, .drops = true});
  } else if (now.unsafeGetTensorImpl() != before.gradient._unsafe_get_target()) {
    refuse(refuse_new_gradient(*leaf));
  } else if (is_told) {
    leaves_.push_back({.tensor = before.leaf, .saw_none = !was_defined, .saw_defined = was_defined});
  }
}

// One that is there was set, or left alone: the next call, which knows what was before, shows which. Where there is none, whatever it
// was, what was none before would be so, too.
void GradientChanges::note_new(const at::Tensor& leaf) {
  if (leaf.grad().defined()) return refuse(refuse_new_gradient(leaf));
  leaves_.push_back({.tensor = trace::WeakTensor(leaf.getIntrusivePtr()), .saw_none = true, .saw_defined = false});
}

void GradientChanges::refuse_results(const GradientsBefore& before, const std::vector<at::Tensor>& leaves,
                                     const std::vector<at::Tensor>& results) {
  if (std::none_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.defined(); })) return;
  Memory gradients;
  for (const GradientsBefore::One& one : before.all()) {
    if (const auto gradient = living(one.gradient)) gradients.insert(trace::storage_of(*gradient));
  }
  for (const at::Tensor& leaf : leaves) {
    if (const at::Tensor& gradient = leaf.grad(); gradient.defined()) gradients.insert(trace::storage_of(gradient));
  }
  gradients.erase(nullptr);
  const auto found = std::find_if(results.begin(), results.end(), [&](const at::Tensor& result) {
    return result.defined() && gradients.count(trace::storage_of(result)) != 0;
  });
  if (found != results.end()) refuse(refuse_result(static_cast<std::size_t>(found - results.begin())));
}

void ForwardGradients::note(const GradientChanges& changes) {
  std::erase_if(leaves_, [](const Leaf& leaf) { return leaf.seen.tensor.expired(); });
  for (const GradientChanges::Leaf& one : changes.leaves()) {
    const auto known = std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) {
      return leaf.seen.tensor._unsafe_get_target() == one.tensor._unsafe_get_target();
    });
    if (known == leaves_.end()) {
      if (const auto leaf = living(one.tensor)) leaves_.push_back({.seen = one, .meta = meta_of(*leaf)});
      continue;
    }
    GradientChanges::Leaf& seen = known->seen;
    if (one.saw_defined) seen.drops = one.drops;
    seen.saw_none = seen.saw_none || one.saw_none;
    seen.saw_defined = seen.saw_defined || one.saw_defined;
  }
}

bool ForwardGradients::are_as_found() const {
  return std::all_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) {
    return leaf.seen.tensor.expired() || (leaf.meta->grad_.defined() ? leaf.seen.saw_defined : leaf.seen.saw_none);
  });
}

void ForwardGradients::drop() const {
  for (const Leaf& leaf : leaves_) {
    if (leaf.seen.drops && !leaf.seen.tensor.expired()) leaf.meta->grad_.reset();
  }
}

std::vector<at::Tensor> ForwardGradients::leaves() const {
  std::vector<at::Tensor> result;
  for (const Leaf& leaf : leaves_) {
    if (const auto tensor = living(leaf.seen.tensor)) result.push_back(*tensor);
  }
  return result;
}

DroppedGradients::DroppedGradients(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    if (const at::Tensor& gradient = leaf.grad(); gradient.defined()) before_.emplace_back(leaf, gradient);
  }
}

DroppedGradients::~DroppedGradients() {
  for (const auto& [leaf, gradient] : before_) {
    at::Tensor& now = meta_of(leaf)->grad_;
    if (!now.defined()) now = gradient;
  }
}

}  // namespace pianola::callable
