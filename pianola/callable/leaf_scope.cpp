#include <pianola/callable/leaf_scope.hpp>

#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/callable/leaf_hooks.hpp>
#include <pianola/trace/real_leaf.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace pianola::callable {
namespace {

namespace autograd = torch::autograd;

bool node_has_hooks(const autograd::Node& node) { return !node.pre_hooks().empty() || !node.post_hooks().empty(); }

}  // namespace

LeafFinder::LeafFinder(const std::vector<at::Tensor>& known) {
  for (const at::Tensor& tensor : known) {
    seen_.insert(tensor.unsafeGetTensorImpl());
    if (trace::storage_of(tensor) != nullptr) known_.insert(trace::storage_of(tensor));
  }
}

void LeafFinder::on_op_begin(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.requires_grad() || !tensor.is_leaf() || op.memory->made(tensor)) return;
      const at::Tensor leaf = trace::real_leaf(tensor);
      if (known_.count(trace::storage_of(leaf)) != 0) return;  // `x.detach().requires_grad_()`
      if (seen_.insert(leaf.unsafeGetTensorImpl()).second) leaves_.push_back(leaf);
    });
  }
}

bool has_hooks(const at::Tensor& leaf) {
  const auto* meta = autograd::impl::get_autograd_meta(leaf);
  return has_own_hooks(leaf) || (meta != nullptr && accumulator_has_hooks(*meta));
}

bool live_accumulator_has_hooks(const autograd::AutogradMeta& meta) noexcept {
  const torch_abi::NodeRef<> node = meta.grad_accumulator_.lock();
  return node != nullptr && node_has_hooks(*node);
}

LeafScope::Silenced::Silenced(at::Tensor leaf_) : leaf(std::move(leaf_)) {}
LeafScope::Silenced::Silenced(Silenced&&) noexcept = default;
LeafScope::Silenced::~Silenced() = default;

void LeafScope::add(const at::Tensor& leaf) {
  if (!index_.insert({leaf.unsafeGetTensorImpl(), silenced_.size()}).second) return;
  Silenced& entry = silenced_.emplace_back(leaf);
  entry.gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
  std::swap(entry.hooks, autograd::impl::hooks(leaf));
  std::swap(entry.post_hook, autograd::impl::post_acc_grad_hooks(leaf));
  torch_abi::NodeRef<> node = autograd::impl::try_get_grad_accumulator(leaf);
  if (node != nullptr) {  // it may have hooks of its own, or be bound to another stream
    autograd::impl::set_grad_accumulator(leaf, torch_abi::no_node());
    entry.accumulator = std::move(node);
  }
}

void LeafScope::clear_gradients() {
  for (const Silenced& entry : silenced_) entry.leaf.mutable_grad().reset();
}

at::Tensor LeafScope::gradient_before(const at::Tensor& leaf) const {
  const auto found = index_.find(leaf.unsafeGetTensorImpl());
  return found == index_.end() ? leaf.grad() : silenced_[found->second].gradient;
}

LeafScope::~LeafScope() {
  for (Silenced& entry : silenced_) {
    entry.leaf.mutable_grad() = entry.gradient;
    std::swap(entry.hooks, autograd::impl::hooks(entry.leaf));
    std::swap(entry.post_hook, autograd::impl::post_acc_grad_hooks(entry.leaf));
    if (entry.accumulator != nullptr) {
      autograd::impl::set_grad_accumulator(entry.leaf, torch_abi::WeakNodeRef(entry.accumulator));
    }
  }
}

}  // namespace pianola::callable
