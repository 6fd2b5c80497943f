#pragma once
#include <pianola/training/buckets.hpp>
#include <pianola/training/leaf_names.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::training {

/// A dimension along which a tensor is padded.
struct PaddedDim {
  std::int64_t dim;  // 0 or more
  c10::Scalar value;
};

/// Which tensors of a batch are padded, along which dimensions, with what.
class PaddingPlan {
 public:
  /// Pads nothing.
  explicit PaddingPlan(std::size_t leaves) : dims_(leaves) {}
  /// Of the first batch. @throws UsageError  A padding fits no tensor, is given twice, or its value is no number of the
  ///                                         tensor's dtype.
  PaddingPlan(const Buckets& buckets, const LeafNames& names, std::span<const at::Tensor> tensors);

  [[nodiscard]] std::span<const PaddedDim> of(std::size_t leaf) const { return dims_[leaf]; }

  /// The length of the longest microbatch. @throws UsageError  A microbatch has tensors of several lengths.
  [[nodiscard]] std::int64_t length_of(const LeafNames& names, std::span<const at::Tensor> tensors) const;

 private:
  void pad_all_of_one_length(const Buckets& buckets, const LeafNames& names, std::span<const at::Tensor> tensors);
  void add(const BucketPadding& padding, std::int64_t default_dim, const LeafNames& names,
           std::span<const at::Tensor> tensors);
  void add(std::size_t leaf, std::int64_t dim, const c10::Scalar& value, const LeafNames& names,
           const at::Tensor& tensor);

  std::vector<std::vector<PaddedDim>> dims_;
};

/// Copies `from` into the corner of `to`, which is at least as long along each of `dims` and else of the same shape,
/// and fills the tails. Where `from` is longer, it is cut off.
void copy_padded(const at::Tensor& to, const at::Tensor& from, std::span<const PaddedDim> dims);

}  // namespace pianola::training
