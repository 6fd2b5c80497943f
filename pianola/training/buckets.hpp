#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Scalar.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// A tensor of a batch that is padded to the length of the batch's bucket.
struct BucketPadding {
  /// Which: the last key or field of its path ("tokens"), or its whole path in the microbatch as messages write it
  /// ("['text']['tokens']", "[0]"; "" where the microbatch is a tensor). In each microbatch that has it.
  std::string tensor;
  c10::Scalar value = 0;                 ///< What the tail holds; a number of the tensor's dtype.
  std::optional<std::int64_t> dim = {};  ///< Along which; negative: from the last one; empty: Buckets::dim.
};

/// Lengths to which batches of variable length are padded, so that one graph per length serves them all.
///
///     Buckets{.sizes = {128, 256, 512}, .padding = {{"tokens", 0}, {"targets", -100}}}
///     Buckets{.sizes = {64}, .padding = {{"mask", false, -1}, {"mask", false, -2}}}   // padded along two dimensions
///
/// The length of a microbatch is the size of its padded tensors along their dimensions, the same for all of them. A
/// batch goes into the smallest bucket that holds its longest microbatch.
struct Buckets {
  std::vector<std::int64_t> sizes = {};  ///< Lengths, ascending; empty: nothing is padded.
  std::int64_t dim = 1;                  ///< Where a padding names none; negative: from the last one.
  /// What is padded. Empty: all tensors whose size along `dim` equals that of the microbatch's first tensor with such a
  /// dimension; the first batch decides.
  std::vector<BucketPadding> padding = {};
  c10::Scalar value = 0;  ///< Fills the tails if `padding` is empty.

  /// The smallest of `sizes` that is at least `length`. @throws UsageError  There is none; names those there are.
  [[nodiscard]] PIANOLA_API std::int64_t bucket_of(std::int64_t length) const;
  /// @throws UsageError  `sizes` is not ascending or holds numbers below 1, or there are paddings without sizes.
  PIANOLA_API void check() const;
};

/// What one bucket has been used for.
struct BucketUse {
  std::int64_t length = 0;   ///< The bucket's.
  std::size_t batches = 0;   ///< That were padded to it.
  std::size_t elements = 0;  ///< Of the caller, in tensors that are padded.
  std::size_t padding = 0;   ///< Elements that padding added to them.

  /// Share of the padded tensors that is padding, 0 to 100.
  [[nodiscard]] PIANOLA_API double waste_percent() const noexcept;
};

}  // namespace pianola
