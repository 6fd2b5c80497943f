#include <pianola/callable/callable_graph.hpp>

#include <pianola/callable/captured_callable.hpp>
#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/callable/leaf_scope.hpp>
#include <pianola/graph/read_check.hpp>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace pianola::callable {

LeafGuard::LeafGuard(std::vector<at::Tensor> leaves, bool with_hooks)
    : leaves_(std::move(leaves)), with_hooks_(with_hooks) {
  for (const at::Tensor& leaf : leaves_) {
    const auto* meta = torch::autograd::impl::materialize_autograd_meta(leaf);
    dense_.push_back({.meta = meta, .had_hooks = may_be_hooked(*meta)});
  }
}

bool LeafGuard::intact() const noexcept {
  bool same = true;
  for (const Leaf& leaf : dense_) {
    same &= leaf.meta->requires_grad_;
    same &= !with_hooks_ || may_be_hooked(*leaf.meta) == leaf.had_hooks;
  }
  return same;
}

CallableGraph::CallableGraph(GraphedCallable graphed, graph::OutsideGuard outside, LeafGuard leaves,
                             ForwardGradients gradients, std::optional<Undo> undo)
    : graphed_(std::move(graphed)),
      outside_(std::move(outside)),
      leaves_(std::move(leaves)),
      gradients_(std::move(gradients)),
      undo_(std::move(undo)) {}

CallableGraph::~CallableGraph() { graphed_.captured()->compute_at_once(); }

std::shared_ptr<CapturedCallable> CallableGraph::debtor() const noexcept {
  return graphed_.captured()->oldest_debt() == 0 ? nullptr : graphed_.captured();
}

std::vector<at::Tensor> CallableGraph::static_inputs() const { return graphed_.captured()->all_static_inputs(); }

std::vector<at::Tensor> CallableGraph::replay_or_undo(std::span<const at::Tensor> inputs) {
  undo_->save();
  try {
    return graphed_.call(inputs);
  } catch (const graph::OtherValue&) {
    undo_->put_back();
    throw;
  }
}

std::string CallableGraph::why_stale() const {
  if (!outside_.intact()) return outside_.difference();
  return leaves_.intact() ? std::string(ForwardGradients::kDifference)
                          : "a parameter was frozen, or got or lost a hook";
}

}  // namespace pianola::callable
