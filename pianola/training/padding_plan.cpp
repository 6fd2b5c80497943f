#include <pianola/training/padding_plan.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/scalar_tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>

namespace pianola::training {
namespace {

// As torch names dimensions: negative ones from the end; nothing where the tensor has none such.
std::optional<std::int64_t> dim_of(const at::Tensor& tensor, std::int64_t dim) {
  const std::int64_t counted = dim < 0 ? dim + tensor.dim() : dim;
  return counted < 0 || counted >= tensor.dim() ? std::nullopt : std::optional(counted);
}

std::string in_words(const c10::Scalar& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// Tails would silently hold another number: 0.5 in integers, -100 in unsigned ones, 2 in masks.
bool holds(c10::ScalarType dtype, const c10::Scalar& value) {
  if (value.isComplex() && !c10::isComplexType(dtype)) return false;
  try {
    const at::Tensor held = at::scalar_tensor(value, dtype);
    return !c10::isIntegralType(dtype, /*includeBool=*/true) || held.item().toDouble() == value.toDouble();
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

PaddingPlan::PaddingPlan(const Buckets& buckets, const LeafNames& names, std::span<const at::Tensor> tensors)
    : dims_(tensors.size()) {
  if (!buckets.sizes.empty() && buckets.padding.empty()) pad_all_of_one_length(buckets, names, tensors);
  for (const BucketPadding& padding : buckets.padding) add(padding, buckets.dim, names, tensors);
}

void PaddingPlan::pad_all_of_one_length(const Buckets& buckets, const LeafNames& names,
                                        std::span<const at::Tensor> tensors) {
  std::optional<std::size_t> microbatch;
  std::int64_t length = 0;
  for (std::size_t leaf = 0; leaf < tensors.size(); ++leaf) {
    const auto dim = dim_of(tensors[leaf], buckets.dim);
    if (!dim) continue;
    if (microbatch != names.microbatch_of(leaf)) {
      microbatch = names.microbatch_of(leaf);
      length = tensors[leaf].size(*dim);
    }
    if (tensors[leaf].size(*dim) == length) add(leaf, *dim, buckets.value, names, tensors[leaf]);
  }
  if (!microbatch) {
    throw UsageError({.what = fmt::format("no tensor of the batch has a dimension {} to pad", buckets.dim),
                      .fix = "set the dimension of the buckets to the one along which lengths vary"});
  }
}

void PaddingPlan::add(const BucketPadding& padding, std::int64_t default_dim, const LeafNames& names,
                      std::span<const at::Tensor> tensors) {
  bool found = false;
  for (std::size_t leaf = 0; leaf < tensors.size(); ++leaf) {
    if (!names.is_called(leaf, padding.tensor)) continue;
    found = true;
    const std::int64_t wanted = padding.dim.value_or(default_dim);
    const auto dim = dim_of(tensors[leaf], wanted);
    if (!dim) {
      throw UsageError({.what = fmt::format("{} is to be padded along dimension {}, but has {}", names[leaf], wanted,
                                            tensors[leaf].dim()),
                        .fix = "name a dimension that it has, in its padding or for all buckets"});
    }
    add(leaf, *dim, padding.value, names, tensors[leaf]);
  }
  if (!found) {
    throw UsageError({.what = fmt::format("the buckets pad '{}', but the batch has no such tensor; microbatch 0 has {}",
                                          padding.tensor, names.listed(0)),
                      .fix = "name the last key of a tensor, or its whole path as it is written here"});
  }
}

void PaddingPlan::add(std::size_t leaf, std::int64_t dim, const c10::Scalar& value, const LeafNames& names,
                      const at::Tensor& tensor) {
  if (!holds(tensor.scalar_type(), value)) {
    throw UsageError({.what = fmt::format("{} cannot be padded with {}: its dtype is {}", names[leaf], in_words(value),
                                          c10::toString(tensor.scalar_type())),
                      .fix = "pad it with a number of its dtype"});
  }
  std::vector<PaddedDim>& dims = dims_[leaf];
  if (std::any_of(dims.begin(), dims.end(), [&](const PaddedDim& known) { return known.dim == dim; })) {
    throw UsageError({.what = fmt::format("the buckets pad {} along dimension {} twice", names[leaf], dim),
                      .fix = "list each tensor once per dimension"});
  }
  dims.push_back({.dim = dim, .value = value});
}

std::int64_t PaddingPlan::length_of(const LeafNames& names, std::span<const at::Tensor> tensors) const {
  std::int64_t longest = 0, length = 0;
  std::optional<std::size_t> first;  // padded tensor of the microbatch
  for (std::size_t leaf = 0; leaf < tensors.size(); ++leaf) {
    for (const auto& [dim, value] : dims_[leaf]) {
      const std::int64_t size = tensors[leaf].size(dim);
      if (!first || names.microbatch_of(*first) != names.microbatch_of(leaf)) {
        first = leaf;
        length = size;
      }
      if (size != length) {
        throw UsageError(
            {.what = fmt::format("{} has length {} along dimension {}, but {} has {}", names[leaf], size, dim,
                                 names[*first], length),
             .fix = "give the padded tensors of a microbatch one length, or list in the buckets which are padded"});
      }
      longest = std::max(longest, size);
    }
  }
  return longest;
}

void copy_padded(const at::Tensor& to, const at::Tensor& from, std::span<const PaddedDim> dims) {
  at::Tensor corner = to, values = from;
  for (const auto& [dim, value] : dims) {
    const std::int64_t length = std::min(to.size(dim), from.size(dim));
    corner = corner.narrow(dim, 0, length);
    values = values.narrow(dim, 0, length);
  }
  corner.copy_(values, /*non_blocking=*/true);
  for (const auto& [dim, value] : dims) {
    const std::int64_t tail = to.size(dim) - from.size(dim);
    if (tail > 0) to.narrow(dim, from.size(dim), tail).fill_(value);
  }
}

}  // namespace pianola::training
