#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>
#include <utility>

namespace pianola::testing {

/// A tensor that autograd has saved with hooks on it, as torch.utils.checkpoint and save_on_cpu set them.
class SavedWithHooks {
 public:
  using Hook = std::function<at::Tensor(const at::Tensor&)>;

  /// @param unpack  What the hook gives back for the tensor: the same one unless it is told otherwise.
  explicit SavedWithHooks(
      const at::Tensor& tensor, Hook unpack = [](const at::Tensor& kept) { return kept; })
      : saved_(tensor, /*is_output=*/false) {
    saved_.register_hooks(std::make_unique<Hooks>(std::move(unpack)));
  }

  /// What a backward pass is given.
  [[nodiscard]] at::Tensor unpack() const { return saved_.unpack(); }

 private:
  class Hooks final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hooks(Hook unpack) : unpack_(std::move(unpack)) {}
    void call_pack_hook(const at::Tensor& tensor) override { kept_ = tensor; }
    at::Tensor call_unpack_hook() override { return unpack_(kept_); }

   private:
    Hook unpack_;
    at::Tensor kept_;
  };

  torch::autograd::SavedVariable saved_;
};

}  // namespace pianola::testing
