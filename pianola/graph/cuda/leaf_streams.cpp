#include <pianola/graph/cuda/leaf_streams.hpp>

#include <pianola/graph/island.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace pianola::graph {
namespace {

namespace autograd = torch::autograd;

bool has_hooks(const autograd::Node& node) {
  // Hooks of the tensor itself stay with the tensor; these are the node's own.
  return !node.pre_hooks().empty() || !node.post_hooks().empty();
}

void run_on(autograd::Node& node, const at::Tensor& leaf, c10::Stream stream) {
  const c10::cuda::CUDAStreamGuard current(c10::cuda::CUDAStream{stream});
  node.clear_input_metadata();
  node.add_input_metadata(leaf);
}

}  // namespace

// Runs before the operation's own autograd code, which is what asks the leaf for its node.
void LeafStreams::on_op_begin(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { expect(tensor); });
  }
  for (const at::Tensor& leaf : own_leaves_of_island(op.info->name, op.inputs)) visit(leaf);
}

void LeafStreams::visit(const at::Tensor& leaf) {
  if (!differentiates_ || leaf.device() != capture_.device() || !seen_.insert(leaf.unsafeGetTensorImpl()).second)
    return;
  torch_abi::NodeRef<> node = autograd::impl::try_get_grad_accumulator(leaf);
  if (node == nullptr || !node->stream() || *node->stream() == capture_.unwrap()) return;
  if (has_hooks(*node)) {
    moved_.push_back({.leaf = leaf, .node = node, .from = *node->stream()});
    run_on(*node, leaf, capture_.unwrap());
  } else {
    autograd::impl::set_grad_accumulator(leaf, torch_abi::no_node());
    replaced_.push_back({.leaf = leaf, .node = std::move(node)});
  }
}

void LeafStreams::restore() noexcept {
  for (const Moved& one : moved_) run_on(*one.node, one.leaf, one.from);
  moved_.clear();
  for (const auto& [leaf, node] : replaced_) autograd::impl::set_grad_accumulator(leaf, torch_abi::WeakNodeRef(node));
  replaced_.clear();
}

}  // namespace pianola::graph
