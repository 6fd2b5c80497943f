#include <pianola/graph/cuda/leaf_streams.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <fmt/format.h>

#include <string>

namespace pianola::graph {
namespace {

namespace autograd = torch::autograd;

bool has_hooks(const autograd::Node& node) {
  // Hooks of the tensor itself stay with the tensor; these are the node's own.
  return !node.pre_hooks().empty() || !node.post_hooks().empty();
}

}  // namespace

// Runs before the operation's own autograd code, which is what asks the leaf for its node.
void LeafStreams::on_op_begin(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.requires_grad() && tensor.is_leaf() && seen_.insert(tensor.unsafeGetTensorImpl()).second)
        visit(tensor);
    });
  }
}

void LeafStreams::visit(const at::Tensor& leaf) {
  std::shared_ptr<autograd::Node> node = autograd::impl::try_get_grad_accumulator(leaf);
  if (node == nullptr || !node->stream() || *node->stream() == capture_.unwrap()) return;
  if (has_hooks(*node)) {
    stuck_.push_back(leaf);
    return;
  }
  autograd::impl::set_grad_accumulator(leaf, {});
  replaced_.emplace_back(leaf, std::move(node));
}

void LeafStreams::restore() noexcept {
  for (const auto& [leaf, node] : replaced_) autograd::impl::set_grad_accumulator(leaf, node);
  replaced_.clear();
}

std::optional<Diagnosis> LeafStreams::explain() const {
  if (stuck_.empty()) return std::nullopt;
  return Diagnosis{
      .what = fmt::format(
          "the backward pass left the capture: the gradient of {} is accumulated on another stream, "
          "because its AccumulateGrad node was made there and has hooks (DDP's, say); this is so for {} leaves",
          trace::describe_parameter(stuck_.front()), stuck_.size()),
      .fix =
          "set up what hooks into gradients (DDP) under the capture stream, or take gradients without it inside the "
          "captured part",
      .rule = "PG705"};
}

}  // namespace pianola::graph
