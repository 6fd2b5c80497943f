#include <pianola/graph/leaf_uses.hpp>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace pianola::graph {

namespace autograd = torch::autograd;

at::Tensor LeafUse::split_off() const {
  at::Tensor own = leaf.detach().requires_grad_();
  *edge = autograd::impl::gradient_edge(own);
  return own;
}

std::vector<LeafUse> uses_of_leaves(const std::vector<at::Tensor>& results,
                                    const std::function<void(const autograd::Node&)>& look) {
  std::vector<LeafUse> uses;
  std::unordered_set<const autograd::Node*> seen;
  std::vector<autograd::Node*> open;
  for (const at::Tensor& result : results) {
    if (result.grad_fn() != nullptr) open.push_back(result.grad_fn().get());
  }
  while (!open.empty()) {
    autograd::Node* const node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (look) look(*node);
    for (autograd::Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (auto* const leaf = dynamic_cast<autograd::AccumulateGrad*>(edge.function.get())) {
        uses.push_back({.edge = &edge, .at = node->sequence_nr(), .leaf = leaf->variable});
      } else {
        open.push_back(edge.function.get());
      }
    }
  }
  return uses;
}

}  // namespace pianola::graph
