#include <pianola/callable/observed_backward.hpp>

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
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace pianola::callable {

namespace autograd = torch::autograd;

// Threads of the backward pass write it: one for each device that results are on.
struct ObservedBackward::Watched {
  [[nodiscard]] bool is_of_run(const autograd::Node& node) const {
    return node.thread_id() == thread && node.sequence_nr() >= began && node.sequence_nr() < ended;
  }

  // @param gradients  Of the outputs of one of the nodes.
  void look(const autograd::Node* at, const autograd::variable_list& gradients) {
    const std::lock_guard lock(mutex);
    for (Result& result : results) {
      if (result.node != at || !result.strides.empty() || !gradients[result.number].defined()) continue;
      const at::Tensor& gradient = gradients[result.number];
      if (gradient.layout() == at::kStrided && gradient.is_non_overlapping_and_dense()) {
        result.strides = gradient.strides().vec();
      }
    }
    if (std::exchange(has_begun, true)) return;
    const auto* graph = autograd::get_current_graph_task_nodes_in_graph();
    if (graph == nullptr) return;
    for (const autograd::Node* node : *graph) look_at(*node);
    if (graph->count(const_cast<autograd::Node*>(at)) == 0) look_at(*at);  // the root, which torch leaves out
  }

  void look_at(const autograd::Node& node) {
    const bool is_inside = is_of_run(node);
    if (!is_inside) add_leaves_of(node);
    count_uses_in(node, is_inside);
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

  void count_uses_in(const autograd::Node& node, bool is_inside) {
    for (Input& input : inputs) {
      const auto leads_there = [&](const autograd::Edge& edge) {
        return edge.function.get() == input.node && edge.input_nr == input.number;
      };
      const auto& edges = node.next_edges();
      (is_inside ? input.inside : input.outside) += std::count_if(edges.begin(), edges.end(), leads_there);
    }
  }

  struct Input {
    const autograd::Node* node;  // that made it, or adds up its gradient
    std::uint32_t number;
    bool is_repeated = false;                // one tensor for several inputs
    std::ptrdiff_t inside = 0, outside = 0;  // uses
  };

  struct Result {
    const autograd::Node* node;
    std::uint32_t number;
    std::vector<std::int64_t> strides = {};  // of its gradient
  };

  std::vector<Input> inputs = {};
  std::vector<Result> results = {};
  std::uint64_t thread = 0, began = 0, ended = 0;
  std::vector<torch_abi::WeakNodeRef> nodes = {};  // of the results
  mutable std::mutex mutex = {};
  bool has_begun = false;
  ska::flat_hash_set<const c10::TensorImpl*> leaves = {};
};

namespace {

template <typename Watched>
class LookHook final : public autograd::FunctionPreHook {
 public:
  LookHook(std::shared_ptr<Watched> watched, const autograd::Node* node) : watched_(std::move(watched)), node_(node) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    watched_->look(node_, gradients);
    return gradients;
  }
  // Compiled autograd takes no notice of it, and nothing is seen then.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {}

 private:
  std::shared_ptr<Watched> watched_;
  const autograd::Node* node_;  // which has the hook
};

}  // namespace

ObservedBackward::ObservedBackward(std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results,
                                   std::uint64_t began)
    : watched_(std::make_shared<Watched>()) {
  for (const at::Tensor& input : inputs) {
    if (!input.requires_grad()) continue;
    const autograd::Edge edge = autograd::impl::gradient_edge(input);
    const auto known = std::find_if(watched_->inputs.begin(), watched_->inputs.end(), [&](const auto& other) {
      return other.node == edge.function.get() && other.number == edge.input_nr;
    });
    if (known != watched_->inputs.end()) {
      known->is_repeated = true;
    } else {
      watched_->inputs.push_back({.node = edge.function.get(), .number = edge.input_nr});
    }
  }
  watched_->thread = at::RecordFunction::currentThreadId();
  watched_->began = began;
  watched_->ended = at::sequence_number::peek();
  ska::flat_hash_set<const autograd::Node*> seen;
  for (const at::Tensor& result : results) {
    const auto& node = result.grad_fn();
    watched_->results.push_back({.node = node.get(), .number = static_cast<std::uint32_t>(result.output_nr())});
    if (node == nullptr || !watched_->is_of_run(*node) || !seen.insert(node.get()).second) continue;
    watched_->nodes.emplace_back(node);
    node->add_pre_hook(std::make_unique<LookHook<Watched>>(watched_, node.get()));
  }
}

bool ObservedBackward::is_awaited() const {
  if (watched_ == nullptr) return false;
  const std::lock_guard lock(watched_->mutex);
  return !watched_->has_begun &&
         std::any_of(watched_->nodes.begin(), watched_->nodes.end(), [](const auto& node) { return !node.expired(); });
}

bool ObservedBackward::was_seen() const {
  if (watched_ == nullptr) return false;
  const std::lock_guard lock(watched_->mutex);
  return watched_->has_begun;
}

bool ObservedBackward::reach(const std::vector<at::Tensor>& leaves) const {
  if (watched_ == nullptr) return false;
  const std::lock_guard lock(watched_->mutex);
  return std::any_of(leaves.begin(), leaves.end(),
                     [&](const at::Tensor& leaf) { return watched_->leaves.count(leaf.unsafeGetTensorImpl()) != 0; });
}

bool ObservedBackward::reach_inputs() const {
  if (watched_ == nullptr) return false;
  const std::lock_guard lock(watched_->mutex);
  return std::any_of(watched_->inputs.begin(), watched_->inputs.end(),
                     [](const auto& input) { return input.inside > 1 && (input.outside > 0 || input.is_repeated); });
}

std::vector<std::vector<std::int64_t>> ObservedBackward::gradient_strides() const {
  std::vector<std::vector<std::int64_t>> all;
  if (watched_ == nullptr) return all;
  const std::lock_guard lock(watched_->mutex);
  if (!watched_->has_begun) return all;
  for (const auto& result : watched_->results) all.push_back(result.strides);
  return all;
}

}  // namespace pianola::callable
