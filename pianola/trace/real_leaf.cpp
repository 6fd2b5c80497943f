#include <pianola/trace/real_leaf.hpp>

#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>

namespace pianola::trace {

namespace autograd = torch::autograd;

namespace {

// Another thread that trains the leaf may make the node at this moment, with this lock held.
torch_abi::NodeRef<> accumulator_of(const at::Tensor& leaf) {
  const std::lock_guard<std::mutex> lock(autograd::impl::get_autograd_meta(leaf)->mutex_);
  return autograd::impl::try_get_grad_accumulator(leaf);
}

}  // namespace

at::Tensor real_leaf(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || !tensor.is_leaf()) return tensor;
  const torch_abi::NodeRef<> node = accumulator_of(tensor);
  const auto* const accumulator = dynamic_cast<const autograd::AccumulateGrad*>(node.get());
  if (accumulator == nullptr || storage_of(accumulator->variable) != storage_of(tensor)) return tensor;
  return accumulator->variable;
}

}  // namespace pianola::trace
