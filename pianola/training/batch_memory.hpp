#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::training {

/// Shape and dtype of one tensor of a batch, and its place in a block of memory.
struct TensorPlace {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;  // without gaps
  c10::ScalarType dtype;
  std::size_t offset = 0;  // in bytes

  [[nodiscard]] std::size_t bytes() const noexcept;
};

/// The tensors of a batch, one after the other in one block: so that all of them travel in one copy.
class BatchLayout {
 public:
  /// Puts each where it is aligned as by torch's allocators, since kernels are chosen by alignment too.
  explicit BatchLayout(std::vector<TensorPlace> places);

  [[nodiscard]] std::span<const TensorPlace> places() const noexcept { return places_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::vector<TensorPlace> places_;
  std::size_t bytes_ = 0;
};

/// A block of memory that holds a batch in any of some layouts, one at a time, and the tensors of each.
class BatchMemory {
 public:
  /// Filled with zeros.
  BatchMemory(std::span<const BatchLayout> layouts, const c10::TensorOptions& options);

  [[nodiscard]] const std::vector<at::Tensor>& tensors(std::size_t layout) const { return tensors_[layout]; }
  /// The whole block, as bytes.
  [[nodiscard]] const at::Tensor& block() const noexcept { return block_; }
  /// The bytes of tensors `first` to `last`, the latter included, without what comes after.
  [[nodiscard]] at::Tensor bytes_of(const BatchLayout& layout, std::size_t first, std::size_t last) const;

 private:
  at::Tensor block_;
  std::vector<std::vector<at::Tensor>> tensors_;
};

}  // namespace pianola::training
