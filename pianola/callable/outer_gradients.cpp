#include <pianola/callable/outer_gradients.hpp>

#include <pianola/callable/backward_node.hpp>
#include <pianola/callable/captured_mode.hpp>
#include <pianola/torch_abi/autograd_node.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

// Written by the thread of the backward pass, and read when that has begun.
struct OuterGradients::Watched {
  [[nodiscard]] bool is_of_run(const autograd::Node& node) const {
    return node.thread_id() == thread && node.sequence_nr() >= began && node.sequence_nr() < ended;
  }

  void look() {
    if (has_begun.load()) return;
    if (const auto* graph = autograd::get_current_graph_task_nodes_in_graph(); graph != nullptr) {
      for (const autograd::Node* node : *graph) {
        if (!is_of_run(*node)) add_leaves_of(*node);
      }
    }
    has_begun.store(true);
  }

  void add_leaves_of(const autograd::Node& node) {
    for (const autograd::Edge& edge : node.next_edges()) {
      const auto* const leaf = dynamic_cast<const autograd::AccumulateGrad*>(edge.function.get());
      if (leaf != nullptr) leaves.insert(leaf->variable.unsafeGetTensorImpl());
    }
    const auto* const graphed = dynamic_cast<const BackwardNode*>(&node);
    if (graphed == nullptr || graphed->mode().direct() == nullptr) return;
    for (const at::Tensor& leaf : graphed->mode().direct()->parameters()) leaves.insert(leaf.unsafeGetTensorImpl());
  }

  std::uint64_t thread = 0, began = 0, ended = 0;
  std::vector<torch_abi::WeakNodeRef> nodes = {};  // of the results
  std::atomic<bool> has_begun = false;
  ska::flat_hash_set<const c10::TensorImpl*> leaves = {};
};

namespace {

template <typename Watched>
class LookHook final : public autograd::FunctionPreHook {
 public:
  explicit LookHook(std::shared_ptr<Watched> watched) : watched_(std::move(watched)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    watched_->look();
    return gradients;
  }

 private:
  std::shared_ptr<Watched> watched_;
};

}  // namespace

OuterGradients::OuterGradients(const std::vector<at::Tensor>& results, std::uint64_t began)
    : watched_(std::make_shared<Watched>()) {
  watched_->thread = at::RecordFunction::currentThreadId();
  watched_->began = began;
  watched_->ended = at::sequence_number::peek();
  ska::flat_hash_set<const autograd::Node*> seen;
  for (const at::Tensor& result : results) {
    const auto& node = result.grad_fn();
    if (node == nullptr || !watched_->is_of_run(*node) || !seen.insert(node.get()).second) continue;
    watched_->nodes.emplace_back(node);
    node->add_pre_hook(std::make_unique<LookHook<Watched>>(watched_));
  }
}

bool OuterGradients::is_awaited() const {
  return watched_ != nullptr && !watched_->has_begun.load() &&
         std::any_of(watched_->nodes.begin(), watched_->nodes.end(), [](const auto& node) { return !node.expired(); });
}

bool OuterGradients::reach(const std::vector<at::Tensor>& leaves) const {
  return watched_ != nullptr && watched_->has_begun.load() &&
         std::any_of(leaves.begin(), leaves.end(),
                     [&](const at::Tensor& leaf) { return watched_->leaves.count(leaf.unsafeGetTensorImpl()) != 0; });
}

}  // namespace pianola::callable
