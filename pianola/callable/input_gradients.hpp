#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace pianola::callable {

/// Sees, while it lives, which inputs with a history (results of other operations that require grad) a run sends gradients to.
/// A step that only detaches such an input, as one of a recurrent network does with its last state, works as well on a copy of
/// it that requires none.
class InputGradients {
 public:
  explicit InputGradients(std::span<const at::Tensor> inputs);
  InputGradients(const InputGradients&) = delete;
  InputGradients& operator=(const InputGradients&) = delete;
  ~InputGradients();

  /// For each input whether it has a history, and was sent no gradient.
  [[nodiscard]] std::vector<bool> spared() const;

 private:
  struct Watched {
    std::size_t input;
    at::Tensor tensor;
    unsigned hook;
    std::shared_ptr<std::atomic<bool>> reached;
  };
  std::size_t inputs_;
  std::vector<Watched> watched_;
};

}  // namespace pianola::callable
