#include <pianola/training/parameter_bucket.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace pianola::training {
namespace {

std::string in_words(const at::Tensor& tensor) {
  return fmt::format("{} on {}", trace::type_of(tensor), tensor.device().str());
}

bool alike(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.device() == other.device() && one.sizes() == other.sizes();
}

}  // namespace

ParameterBucket::ParameterBucket(std::size_t group, std::vector<std::size_t> indices, StepLists lists)
    : group_(group), indices_(std::move(indices)), all_(std::move(lists)) {
  all_.gradients.reserve(all_.parameters.size());
  some_.state.resize(all_.state.size());
  for (const std::vector<at::Tensor>& list : all_.state) own_.emplace_back(list);
}

StepLists* ParameterBucket::gather() {
  std::size_t defined = 0, fitting = 0;
  for (std::size_t row = 0; row < all_.parameters.size(); ++row) {
    const at::Tensor& gradient = all_.gradients.emplace_back(all_.parameters[row].grad());
    if (!gradient.defined()) continue;
    check(row, gradient);
    ++defined;
    if (fits(row, gradient)) ++fitting;
  }
  if (defined == 0) return nullptr;
  if (fitting == all_.parameters.size()) return &all_;
  select();
  return &some_;
}

void ParameterBucket::check(std::size_t row, const at::Tensor& gradient) const {
  const at::Tensor& parameter = all_.parameters[row];
  const auto name = [&] {
    return "parameter " + std::to_string(indices_[row]) + " of group " + std::to_string(group_);
  };
  if (gradient.layout() != at::kStrided) {
    throw UsageError({.what = "the gradient of " + name() + " is sparse, which fused kernels do not accept",
                      .fix = "make it dense, e.g. with sparse=False of the embedding"});
  }
  if (!alike(gradient, parameter)) {
    throw UsageError(
        {.what = "the gradient of " + name() + " is " + in_words(gradient) + ", the parameter " + in_words(parameter)});
  }
  if (!all_.state.empty() && !alike(all_.state[0][row], parameter)) {
    throw UsageError(
        {.what = name() + " has become " + in_words(parameter) + ", its state is " + in_words(all_.state[0][row]),
         .fix = "convert and move a model before its optimizer is made"});
  }
}

bool ParameterBucket::fits(std::size_t row, const at::Tensor& gradient) const {
  const at::Tensor& parameter = all_.parameters[row];
  return !widened_ && parameter.is_non_overlapping_and_dense() && parameter.strides() == gradient.strides() &&
         (all_.state.empty() || all_.state[0][row].strides() == parameter.strides());
}

void ParameterBucket::select() {
  const c10::ScalarType compute = widened_ ? at::kFloat : dtype();
  for (std::size_t row = 0; row < all_.parameters.size(); ++row) {
    at::Tensor parameter = all_.parameters[row], gradient = all_.gradients[row];
    if (!gradient.defined()) continue;
    const bool copied = !fits(row, gradient);
    if (copied) {
      const at::Tensor layout = all_.state.empty() ? parameter : all_.state[0][row];
      parameter = written_.add(parameter, layout, compute);
      gradient = gradients_.add(gradient, layout, compute);
    }
    some_.parameters.push_back(std::move(parameter));
    some_.gradients.push_back(std::move(gradient));
    for (std::size_t kind = 0; kind < all_.state.size(); ++kind) {
      const at::Tensor& state = all_.state[kind][row];
      some_.state[kind].push_back(widened_ ? written_.add(state, state, compute) : state);
    }
  }
  for (const Copies* of : {&written_, &gradients_}) {
    if (!of->copies.empty()) at::_foreach_copy_(of->copies, of->originals);
  }
}

at::Tensor ParameterBucket::Copies::add(const at::Tensor& original, const at::Tensor& layout, c10::ScalarType dtype) {
  originals.push_back(original);
  return copies.emplace_back(at::empty_like(layout, layout.options().dtype(dtype).requires_grad(false)));
}

void ParameterBucket::release() noexcept {
  all_.gradients.clear();
  some_.parameters.clear();
  some_.gradients.clear();
  for (std::vector<at::Tensor>& list : some_.state) list.clear();
  for (Copies* of : {&written_, &gradients_}) {
    of->originals.clear();
    of->copies.clear();
  }
}

BucketStep::BucketStep(ParameterBucket& bucket) : bucket_(bucket), lists_(nullptr) {
  try {
    lists_ = bucket.gather();
  } catch (...) {
    bucket.release();
    throw;
  }
}

void BucketStep::finish(bool gradients) {
  const ParameterBucket::Copies &written = bucket_.written_, &unscaled = bucket_.gradients_;
  if (!written.copies.empty()) at::_foreach_copy_(written.originals, written.copies);
  if (gradients && !unscaled.copies.empty()) at::_foreach_copy_(unscaled.originals, unscaled.copies);
  for (const at::Tensor& parameter : lists_->parameters) parameter.unsafeGetTensorImpl()->bump_version();
}

std::vector<ParameterBucket> make_buckets(std::size_t group, const std::vector<at::Tensor>& parameters,
                                          const std::vector<std::vector<at::Tensor>>& state) {
  struct Rows {
    c10::ScalarType dtype;
    std::vector<std::size_t> indices;
    StepLists lists;
  };
  std::vector<Rows> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::size_t at = 0;
    while (at < all.size() && all[at].dtype != parameters[i].scalar_type()) ++at;
    if (at == all.size()) all.push_back({.dtype = parameters[i].scalar_type(), .indices = {}, .lists = {}});
    Rows& rows = all[at];
    rows.indices.push_back(i);
    rows.lists.parameters.push_back(parameters[i]);
    rows.lists.state.resize(state.size());
    for (std::size_t kind = 0; kind < state.size(); ++kind) rows.lists.state[kind].push_back(state[kind][i]);
  }
  std::vector<ParameterBucket> buckets;
  for (Rows& rows : all) buckets.emplace_back(group, std::move(rows.indices), std::move(rows.lists));
  return buckets;
}

}  // namespace pianola::training
