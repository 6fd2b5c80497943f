#include <pianola/callable/forward_gradients.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/tensors_of.hpp>

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

Diagnosis refuse_result(std::size_t result) {
  return {
      .what = fmt::format("result {} is the gradient of a parameter that the call found; a replay would return that "
                          "of one call for ever",
                          result),
      .fix = "read gradients outside of the function",
      .rule = "PG401"};
}

Diagnosis refuse_new_leaf(const at::Tensor& leaf) {
  return {
      .what = fmt::format("the function changes the gradient of {}, which the call before knew nothing of; a replay "
                          "would change that of one call for ever",
                          trace::describe(leaf)),
      .fix = "let each call work on the same parameters",
      .rule = "PG803"};
}

// The first of them that is in this memory.
std::optional<std::size_t> result_among(const ska::flat_hash_set<const c10::StorageImpl*>& memory,
                                        const std::vector<at::Tensor>& results) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const at::Tensor& result) {
    return result.defined() && memory.count(trace::storage_of(result)) != 0;
  });
  return found == results.end() ? std::nullopt : std::optional<std::size_t>(found - results.begin());
}

}  // namespace

GradientsBefore::GradientsBefore(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    all_.push_back({.leaf = trace::WeakTensor(leaf.getIntrusivePtr()),
                    .gradient = trace::WeakTensor(leaf.grad().getIntrusivePtr())});
  }
}

ska::flat_hash_set<const c10::StorageImpl*> GradientsBefore::found() const {
  ska::flat_hash_set<const c10::StorageImpl*> memory;
  for (const One& one : all_) {
    auto alive = one.gradient.lock();
    if (!alive) continue;
    const at::Tensor gradient(std::move(alive));
    if (const c10::StorageImpl* const storage = trace::storage_of(gradient)) memory.insert(storage);
  }
  return memory;
}

ForwardGradients::ForwardGradients(const GradientsBefore& before, const std::vector<trace::WeakTensor>& stored,
                                   const std::vector<at::Tensor>& results) {
  ska::flat_hash_set<const c10::TensorImpl*> unknown;
  for (const trace::WeakTensor& leaf : stored) unknown.insert(leaf._unsafe_get_target());
  for (const GradientsBefore::One& one : before.all_) {
    compare(one, /*is_stored=*/unknown.erase(one.leaf._unsafe_get_target()) != 0);
  }
  for (const trace::WeakTensor& weak : stored) {
    if (obstacle_ || unknown.count(weak._unsafe_get_target()) == 0) continue;
    if (auto leaf = weak.lock()) obstacle_ = refuse_new_leaf(at::Tensor(std::move(leaf)));
  }
  if (const auto result = result_among(before.found(), results); result && !obstacle_)
    obstacle_ = refuse_result(*result);
}

void ForwardGradients::compare(const GradientsBefore::One& before, bool is_stored) {
  auto alive = before.leaf.lock();
  if (!alive) return;
  const at::Tensor leaf(std::move(alive));
  torch::autograd::AutogradMeta* const meta = torch::autograd::impl::materialize_autograd_meta(leaf);
  const bool was_defined = before.gradient._unsafe_get_target() != c10::UndefinedTensorImpl::singleton();
  const bool is_same = meta->grad_.unsafeGetTensorImpl() == before.gradient._unsafe_get_target();
  const Leaf one{.tensor = before.leaf, .meta = meta, .was_defined = was_defined};
  if (was_defined && !meta->grad_.defined()) {
    dropped_.push_back(one);
  } else if (!is_same && !obstacle_) {
    obstacle_ = refuse_new_gradient(leaf);
  } else if (is_stored) {
    may_decide_.push_back(one);
  }
}

bool ForwardGradients::are_as_found() const {
  return std::all_of(may_decide_.begin(), may_decide_.end(), [](const Leaf& leaf) {
    return leaf.tensor.expired() || leaf.meta->grad_.defined() == leaf.was_defined;
  });
}

void ForwardGradients::drop() const {
  for (const Leaf& leaf : dropped_) {
    if (!leaf.tensor.expired()) leaf.meta->grad_.reset();
  }
}

}  // namespace pianola::callable
