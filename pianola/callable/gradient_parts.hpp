#pragma once
#include <pianola/graph/placement.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <limits>
#include <vector>

namespace pianola::callable {

/// The tensors that a gradient is made of, where its operators are Python (a DTensor); none for others. Kept by weak references.
class GradientParts {
 public:
  GradientParts() = default;
  explicit GradientParts(const at::Tensor& gradient);

  /// Once what the capture's run has held is gone: who holds one of them more often than now holds the gradient.
  void count_references();
  /// Whether the gradient is made of the same ones, where they lay, and nobody has begun to hold one. At once where there are none;
  /// else Python is asked.
  [[nodiscard]] bool are_of(const at::Tensor& gradient) const;

 private:
  struct One {
    trace::WeakTensor tensor;
    graph::Placement placement;
    std::size_t references = std::numeric_limits<std::size_t>::max();  // of Python: until they are counted
  };

  std::vector<One> all_;
};

}  // namespace pianola::callable
