#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace pianola::graph {

/// One place in a history where autograd sends a gradient to a leaf.
struct LeafUse {
  torch::autograd::Edge* edge;
  std::uint64_t at;  ///< The number of the node that has the edge: autograd comes to higher ones first.
  at::Tensor leaf;

  /// Lets the edge lead to a leaf of its own on the same memory, which is returned.
  [[nodiscard]] at::Tensor split_off() const;
};

/// All of them in the history of these results, in the order in which they are found.
/// @param look  Called for each node; what it throws comes out.
[[nodiscard]] std::vector<LeafUse> uses_of_leaves(const std::vector<at::Tensor>& results,
                                                  const std::function<void(const torch::autograd::Node&)>& look = {});

}  // namespace pianola::graph
