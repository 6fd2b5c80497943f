#pragma once
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace torch::autograd {
struct FunctionPreHook;
class PostAccumulateGradHook;
}  // namespace torch::autograd

namespace pianola::callable {

/// Finds the parameters of arbitrary code: the leaves that require grad and that its operations read, wherever they come
/// from. Leaves that only a recomputation will differentiate are seen as well, which a walk of autograd's graph misses.
class LeafFinder final : public trace::OpObserver {
 public:
  /// @param known  No parameters, and neither are leaves in their memory: the static inputs.
  explicit LeafFinder(const std::vector<at::Tensor>& known);

  void on_op_begin(const trace::OpSpan& op) override;

  [[nodiscard]] const std::vector<at::Tensor>& leaves() const noexcept { return leaves_; }

 private:
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  ska::flat_hash_set<const c10::StorageImpl*> known_;
  std::vector<at::Tensor> leaves_;
};

/// Whether somebody wants to see the gradient of this leaf go by: hooks of the tensor or of its AccumulateGrad node.
bool has_hooks(const at::Tensor& leaf);

/// While it lives, backward passes may run through leaves without a trace: their hooks are silent and their gradients
/// start undefined. The destructor puts hooks and gradients back.
class LeafScope {
 public:
  LeafScope() = default;
  LeafScope(const LeafScope&) = delete;
  LeafScope& operator=(const LeafScope&) = delete;
  ~LeafScope();

  /// Silences a leaf; nothing if it is silent already.
  void add(const at::Tensor& leaf);
  /// Makes the gradients of silent leaves undefined again, after code that put them back.
  void clear_gradients();
  /// What its gradient was before.
  [[nodiscard]] at::Tensor gradient_before(const at::Tensor& leaf) const;

 private:
  struct Silenced {
    explicit Silenced(at::Tensor leaf_);
    Silenced(Silenced&&) noexcept;
    ~Silenced();
    at::Tensor leaf;
    at::Tensor gradient;
    std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> hooks;
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> post_hook;
    torch_abi::NodeRef<> accumulator;
  };
  ska::flat_hash_map<const c10::TensorImpl*, std::size_t> index_;
  std::vector<Silenced> silenced_;
};

}  // namespace pianola::callable
