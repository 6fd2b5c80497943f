#include <pianola/callable/result_history.hpp>

#include <pianola/callable/custom_backwards.hpp>
#include <pianola/callable/leaf_scope.hpp>
#include <pianola/trace/references.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <set>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

namespace {

// What of a run's history was let go of, and what is older than the run.
class NodesOfRun {
 public:
  NodesOfRun(std::uint64_t began, std::span<const trace::ReleasedNode> released) : began_(began) {
    for (const trace::ReleasedNode& node : released) released_.emplace(node.thread, node.sequence);
  }

  [[nodiscard]] bool has(const autograd::Node& node) const {
    return node.thread_id() != thread_ || node.sequence_nr() >= began_;
  }
  [[nodiscard]] bool may_hold_tensors(autograd::Node& node) const {
    const bool has_hooks = !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() || !node.post_hooks().empty();
    return has_hooks || is_custom(node) ||
           released_.count({node.thread_id(), static_cast<std::int64_t>(node.sequence_nr())}) == 0;
  }

 private:
  std::uint64_t thread_ = at::RecordFunction::currentThreadId();
  std::uint64_t began_;
  std::set<std::pair<std::uint64_t, std::int64_t>> released_;
};

// Of the node that accumulates its gradient, and of whoever looks at it.
constexpr std::size_t kOfOwnLeaf = 2;

// A leaf that the history alone holds; undefined where it is gone, or somebody else's, too.
at::Tensor own_leaf(const trace::WeakTensor& weak) {
  at::Tensor leaf(weak.lock());
  return leaf.defined() && trace::references_to(leaf) == kOfOwnLeaf ? leaf : at::Tensor();
}

}  // namespace

ResultHistory::ResultHistory(const std::vector<at::Tensor>& results, std::uint64_t began,
                             std::span<const trace::ReleasedNode> released) {
  const NodesOfRun run(began, released);
  bool is_open = false;
  std::vector<autograd::Node*> found;
  ska::flat_hash_set<const autograd::Node*> seen;
  const auto visit = [&](autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) found.push_back(node);
  };
  for (const at::Tensor& result : results) visit(result.grad_fn().get());
  for (std::size_t i = 0; i < found.size() && !is_open; ++i) {
    if (const auto* const leaf = dynamic_cast<const autograd::AccumulateGrad*>(found[i])) {
      leaves_.emplace_back(leaf->variable.getIntrusivePtr());
    } else if (run.has(*found[i])) {
      is_open = run.may_hold_tensors(*found[i]);
      for (const autograd::Edge& edge : found[i]->next_edges()) visit(edge.function.get());
    }
  }
  if (!is_open) return;
  for (const at::Tensor& result : results) {
    if (const auto& node = result.grad_fn()) open_.emplace_back(node);
  }
}

// Hooks of a leaf that it alone holds go with it, those of a parameter do not.
bool ResultHistory::may_hold_tensors() const {
  const auto is_there = [](const auto& node) { return !node.expired(); };
  const auto has_hooks_of_its_own = [](const trace::WeakTensor& weak) {
    const at::Tensor leaf = own_leaf(weak);
    return leaf.defined() && has_hooks(leaf);
  };
  return std::any_of(open_.begin(), open_.end(), is_there) ||
         std::any_of(leaves_.begin(), leaves_.end(), has_hooks_of_its_own);
}

std::size_t ResultHistory::references_to(const c10::Storage& memory) const {
  const auto lies_there = [&](const at::Tensor& tensor, std::size_t references) {
    return tensor.defined() && trace::storage_of(tensor) == memory.unsafeGetStorageImpl() &&
           trace::references_to(tensor) == references;
  };
  std::size_t found = 0;
  for (const trace::WeakTensor& weak : leaves_) {
    const at::Tensor leaf = own_leaf(weak);
    if (!leaf.defined()) continue;
    found += lies_there(leaf, kOfOwnLeaf) ? 1 : 0;
    found += lies_there(leaf.grad(), 1) ? 1 : 0;  // the leaf's
  }
  return found;
}

}  // namespace pianola::callable
