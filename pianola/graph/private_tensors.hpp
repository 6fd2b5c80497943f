#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

namespace pianola::graph {

// Note [Private tensors]
// Before each replay a guard sees whether every tensor from outside is still what the graph uses. An optimizer has
// several for each parameter, made when it was made, written in place, and gone when it is: whether they are still there
// is one question, about the optimizer. Who gets at one of them must not replace its memory either; that is not seen.

/// Declares tensors that one object makes, holds for as long as it lives, and never replaces, so that guards ask for the
/// object instead of each. An object of its own in every owner; moved with it. Any thread.
class PrivateTensors {
 public:
  /// Lives as long as the tensors are held.
  using Owner = std::weak_ptr<const void>;

  PrivateTensors() = default;
  /// Keeps none of them alive.
  explicit PrivateTensors(std::span<const at::Tensor> tensors);

  /// Who declared this tensor; expired: nobody.
  [[nodiscard]] static Owner owner_of(const at::Tensor& tensor);

 private:
  std::shared_ptr<const void> declared_;
};

}  // namespace pianola::graph
