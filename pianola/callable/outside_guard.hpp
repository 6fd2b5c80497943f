#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace pianola::callable {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Sees in one tight loop whether the tensors that a function reads from elsewhere are still what its graph reads: each
/// at its address, as differentiable as it was, and held by somebody. One that nobody holds any more was replaced: the
/// function reads another one by now.
class OutsideGuard {
 public:
  /// Keeps none of them alive, and watches those that live on without us.
  explicit OutsideGuard(std::vector<at::Tensor> tensors);

  [[nodiscard]] bool intact() const noexcept;
  /// "a Float tensor of shape [16] that the function reads was replaced, frozen or unfrozen"; empty where all is
  /// intact.
  [[nodiscard]] std::string difference() const;

 private:
  struct Watched {
    WeakTensor tensor;
    const c10::TensorImpl* impl;
    const void* address;
    bool requires_grad;
    [[nodiscard]] bool intact() const noexcept;
  };
  std::vector<Watched> watched_;
  std::vector<std::string> names_;
};

}  // namespace pianola::callable
