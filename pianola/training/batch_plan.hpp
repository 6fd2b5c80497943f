#pragma once
#include <pianola/callable/structure.hpp>
#include <pianola/core/error.hpp>
#include <pianola/training/batch_memory.hpp>
#include <pianola/training/leaf_names.hpp>
#include <pianola/training/padding_plan.hpp>
#include <pianola/training/static_inputs.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::training {

/// What the first batch fixes for all later ones: structure, shapes and dtypes of each microbatch, what is padded, and
/// how the batch of each bucket lies in memory.
class BatchPlan {
 public:
  /// @throws UsageError  No microbatch, a tensor without memory of its own, or buckets that do not fit.
  BatchPlan(const std::vector<c10::IValue>& batch, const StaticInputsOptions& options);

  /// The tensors of `batch`, in order. @throws UsageError  It differs from the first one, or no bucket holds it.
  [[nodiscard]] std::vector<at::Tensor> flatten(const std::vector<c10::IValue>& batch) const;
  /// The number of the bucket for tensors of flatten(); 0 without buckets.
  [[nodiscard]] std::size_t bucket_for(std::span<const at::Tensor> tensors) const;
  /// Microbatches around these tensors.
  [[nodiscard]] std::vector<c10::IValue> rebuild(std::span<const at::Tensor> tensors) const;

  /// Of each bucket; one without buckets.
  [[nodiscard]] std::span<const BatchLayout> layouts() const noexcept { return layouts_; }
  /// Lengths of the buckets, ascending; one of 0 without buckets.
  [[nodiscard]] std::span<const std::int64_t> lengths() const noexcept { return lengths_; }
  [[nodiscard]] const PaddingPlan& padding() const noexcept { return padding_; }
  [[nodiscard]] std::size_t microbatches() const noexcept { return structures_.size(); }
  [[nodiscard]] std::size_t tensors() const noexcept { return names_.size(); }

 private:
  struct Parts;
  BatchPlan(Parts parts, const Buckets& buckets);
  static Parts take_apart(const std::vector<c10::IValue>& batch, const StaticInputsOptions& options);
  [[nodiscard]] Diagnosis difference_in(const std::vector<c10::IValue>& batch, std::size_t microbatch) const;
  void check_shape(std::size_t leaf, const at::Tensor& tensor) const;

  Buckets buckets_;
  std::vector<callable::Structure> structures_;
  LeafNames names_;
  PaddingPlan padding_;
  std::vector<std::int64_t> lengths_;
  std::vector<BatchLayout> layouts_;
};

}  // namespace pianola::training
