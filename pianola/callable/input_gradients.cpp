#include <pianola/callable/input_gradients.hpp>

#include <c10/util/Exception.h>

namespace pianola::callable {

// A backward pass comes to a tensor's hooks on whichever thread, and only where it computes the tensor's gradient.
InputGradients::InputGradients(std::span<const at::Tensor> inputs) : inputs_(inputs.size()) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad() || inputs[i].is_leaf()) continue;
    auto reached = std::make_shared<std::atomic<bool>>(false);
    const unsigned hook = inputs[i].register_hook([reached](const at::Tensor& /*gradient*/) { *reached = true; });
    watched_.push_back({.input = i, .tensor = inputs[i], .hook = hook, .reached = std::move(reached)});
  }
}

InputGradients::~InputGradients() {
  for (const Watched& one : watched_) {
    try {
      one.tensor.remove_hook(one.hook);
    } catch (const c10::Error&) {  // the run has written the tensor, and it has no hooks any more
    }
  }
}

std::vector<bool> InputGradients::spared() const {
  std::vector<bool> spared(inputs_, false);
  for (const Watched& one : watched_) spared[one.input] = !*one.reached;
  return spared;
}

}  // namespace pianola::callable
