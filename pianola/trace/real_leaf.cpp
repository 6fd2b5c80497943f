#include <pianola/trace/real_leaf.hpp>

#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace pianola::trace {

namespace autograd = torch::autograd;

at::Tensor real_leaf(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || !tensor.is_leaf()) return tensor;
  const torch_abi::NodeRef<> node = autograd::impl::try_get_grad_accumulator(tensor);
  const auto* const accumulator = dynamic_cast<const autograd::AccumulateGrad*>(node.get());
  if (accumulator == nullptr || storage_of(accumulator->variable) != storage_of(tensor)) return tensor;
  return accumulator->variable;
}

}  // namespace pianola::trace
