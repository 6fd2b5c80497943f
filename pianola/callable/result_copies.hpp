#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

namespace pianola::callable {

/// The copies of a call's results that are the caller's own. Their memory is asked for before the launch: a call that finds none has
/// done nothing.
class ResultCopies {
 public:
  /// None are made.
  ResultCopies() = default;
  /// @param results  What copy() will be given, in that order. @throws c10::OutOfMemoryError
  explicit ResultCopies(std::span<const at::Tensor> results);

  /// As result.clone().
  [[nodiscard]] at::Tensor copy(const at::Tensor& result);

 private:
  std::vector<at::Tensor> memory_;  // undefined where a copy is more than bytes
  std::size_t next_ = 0;
};

}  // namespace pianola::callable
