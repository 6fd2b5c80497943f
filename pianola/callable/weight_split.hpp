#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pianola::callable {

// Note [Weight gradients later]
// Other stages of a pipeline wait for the gradients of a stage's inputs; those of its weights can wait. Autograd's own
// formulas compute both, so that nothing rounds otherwise. Before the backward pass runs, the edges that lead from a
// product (of matrices, a convolution) to its weights are taken out of the history: autograd then neither computes these
// gradients nor adds them up, and what flows into each product is noted. For the second part these edges alone are put
// back, and autograd runs from the products on, with what was noted.

/// Splits one backward pass in two: all but the gradients of weights, then those.
///
/// A weight is a leaf that a product reads directly, or through a change of its layout, size (expand) or dtype. One that anything else
/// uses as well is left in the first part: its gradients are one sum. So are those of products that are recomputed.
class WeightSplit {
 public:
  using Leaves = ska::flat_hash_set<const c10::TensorImpl*>;

  /// Takes the edges out of the history behind `outputs`, which has to live until run() is through, and is of no use then.
  /// @param may_wait  The leaves that count as weights.
  /// @param began     at::sequence_number::peek() before the run that made the history: what is older is others'.
  WeightSplit(const std::vector<at::Tensor>& outputs, const Leaves& may_wait, std::uint64_t began);
  WeightSplit(const WeightSplit&) = delete;
  WeightSplit& operator=(const WeightSplit&) = delete;
  ~WeightSplit();

  /// The weights whose gradients the first part leaves alone, each once.
  [[nodiscard]] const std::vector<at::Tensor>& weights() const noexcept { return weights_; }

  /// Between the parts: copies of what was noted, where it lies in memory of `others`, which is written before run().
  void set_apart(const std::vector<at::Tensor>& others);

  /// The second part, once: `.grad` of the weights gets their gradients, as backward() would add them.
  /// @param retain  Whether what the history has saved stays. What was noted does as long as this object.
  /// @throws UnsupportedError  What was noted was written since: eager's product has read it by then.
  void run(bool retain);

 private:
  struct Product;
  std::vector<std::unique_ptr<Product>> products_;
  std::vector<at::Tensor> weights_;
};

}  // namespace pianola::callable
