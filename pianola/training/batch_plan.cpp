#include <pianola/training/batch_plan.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/training/batch_difference.hpp>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::training {
namespace {

void require_plain(const at::Tensor& tensor, const std::string& name) {
  if (tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_meta() && !tensor.is_quantized()) return;
  throw UsageError(
      {.what = fmt::format("{} is a sparse, quantized or meta tensor, which has no plain memory to copy", name),
       .fix = "give a dense one"});
}

// As it lies in the batch: strides decide which kernels run. Gaps and repeated elements are left out, as by clone().
TensorPlace place_of(const at::Tensor& tensor, std::span<const PaddedDim> padded, std::int64_t length) {
  TensorPlace place{.sizes = tensor.sizes().vec(), .strides = tensor.strides().vec(), .dtype = tensor.scalar_type()};
  for (const PaddedDim& dim : padded) place.sizes[static_cast<std::size_t>(dim.dim)] = length;
  if (place.sizes == tensor.sizes() && tensor.is_non_overlapping_and_dense()) return place;
  // What has one element along a dimension has any stride there: contiguous ones are not to be guessed.
  place.strides = tensor.is_contiguous() ? at::IntArrayRef(c10::contiguous_strides(place.sizes)).vec()
                                         : at::infer_dense_strides(place.sizes, tensor.strides());
  return place;
}

std::vector<BatchLayout> layouts_of(std::span<const at::Tensor> tensors, const PaddingPlan& padding,
                                    std::span<const std::int64_t> lengths) {
  std::vector<BatchLayout> layouts;
  for (const std::int64_t length : lengths) {
    std::vector<TensorPlace> places;
    for (std::size_t leaf = 0; leaf < tensors.size(); ++leaf) {
      places.push_back(place_of(tensors[leaf], padding.of(leaf), length));
    }
    layouts.emplace_back(std::move(places));
  }
  return layouts;
}

}  // namespace

struct BatchPlan::Parts {
  std::vector<callable::Structure> structures;
  std::vector<at::Tensor> tensors;
  LeafNames names;
};

BatchPlan::Parts BatchPlan::take_apart(const std::vector<c10::IValue>& batch, const StaticInputsOptions& options) {
  if (batch.empty()) throw UsageError({.what = "the batch has no microbatch", .fix = "give one value per microbatch"});
  Parts parts;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::string name = microbatch_name(i);
    const callable::Structure& structure = parts.structures.emplace_back(batch[i], name);
    (void)structure.flatten(batch[i], parts.tensors);  // its own structure: there is no difference
    for (std::size_t k = 0; k < structure.leaves(); ++k) {
      parts.names.add(i, options.path_of ? options.path_of(i, k) : structure.name_of(k).substr(name.size()));
    }
  }
  for (std::size_t leaf = 0; leaf < parts.tensors.size(); ++leaf) {
    require_plain(parts.tensors[leaf], parts.names[leaf]);
  }
  return parts;
}

BatchPlan::BatchPlan(const std::vector<c10::IValue>& batch, const StaticInputsOptions& options)
    : BatchPlan(take_apart(batch, options), options.buckets) {}

BatchPlan::BatchPlan(Parts parts, const Buckets& buckets)
    : buckets_(buckets),
      structures_(std::move(parts.structures)),
      names_(std::move(parts.names)),
      padding_(buckets, names_, parts.tensors),
      lengths_(buckets.sizes.empty() ? std::vector<std::int64_t>{0} : buckets.sizes),
      layouts_(layouts_of(parts.tensors, padding_, lengths_)) {}

std::vector<at::Tensor> BatchPlan::flatten(const std::vector<c10::IValue>& batch) const {
  if (batch.size() != structures_.size()) {
    throw UsageError(
        {.what = fmt::format("the batch has {} microbatches, the first one had {}", batch.size(), structures_.size()),
         .fix = "a captured step reads all of them: give the same number each time"});
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(names_.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (structures_[i].flatten(batch[i], tensors)) throw UsageError(difference_in(batch, i));
  }
  for (std::size_t leaf = 0; leaf < tensors.size(); ++leaf) check_shape(leaf, tensors[leaf]);
  return tensors;
}

// Values without their tensors: all that a message compares.
Diagnosis BatchPlan::difference_in(const std::vector<c10::IValue>& batch, std::size_t microbatch) const {
  const callable::Structure& structure = structures_[microbatch];
  const std::vector<at::Tensor> nothing(structure.leaves(), at::empty({0}));
  return batch_difference(structure.rebuild(nothing), batch[microbatch], microbatch_name(microbatch));
}

void BatchPlan::check_shape(std::size_t leaf, const at::Tensor& tensor) const {
  require_plain(tensor, names_[leaf]);
  const TensorPlace& place = layouts_.back().places()[leaf];
  std::vector<std::int64_t> expected = place.sizes;
  if (tensor.dim() == static_cast<std::int64_t>(expected.size())) {
    for (const PaddedDim& padded : padding_.of(leaf)) {
      expected[static_cast<std::size_t>(padded.dim)] = tensor.size(padded.dim);  // bucket_for() judges it
    }
  }
  if (tensor.scalar_type() == place.dtype && tensor.sizes() == at::IntArrayRef(expected)) return;
  const bool is_shape = tensor.scalar_type() == place.dtype;
  throw UsageError(
      {.what = fmt::format("{}: expected {}, got {}", names_[leaf], trace::type_of(place.dtype, expected),
                           trace::type_of(tensor.scalar_type(), tensor.sizes())),
       .fix = !is_shape ? "convert it before it is loaded"
              : buckets_.sizes.empty()
                  ? "set StaticInputsOptions::buckets, which pads it, or give other shapes StaticInputs of their own"
                  : "give it the shape of the first batch, or list what varies in the padding of the buckets"});
}

std::size_t BatchPlan::bucket_for(std::span<const at::Tensor> tensors) const {
  if (buckets_.sizes.empty()) return 0;
  const std::int64_t bucket = buckets_.bucket_of(padding_.length_of(names_, tensors));
  return static_cast<std::size_t>(std::lower_bound(lengths_.begin(), lengths_.end(), bucket) - lengths_.begin());
}

std::vector<c10::IValue> BatchPlan::rebuild(std::span<const at::Tensor> tensors) const {
  std::vector<c10::IValue> microbatches;
  for (const callable::Structure& structure : structures_) {
    microbatches.push_back(structure.rebuild(tensors.first(structure.leaves())));
    tensors = tensors.subspan(structure.leaves());
  }
  return microbatches;
}

}  // namespace pianola::training
