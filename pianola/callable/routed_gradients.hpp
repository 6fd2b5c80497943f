#pragma once
#include <pianola/callable/gradient_buffers.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <vector>

namespace pianola::callable {

/// What autograd is given of the buffers.
enum class HandOut { copies, aliases };

/// Gradients that go on through autograd: the backward graphs of one callable, in one mode, write them into buffers,
/// one per parameter for all slots, and autograd does the rest.
///
/// Aliases cost no copy, and lie in memory that the next replay overwrites. Until then somebody may need what it holds:
/// autograd, where a loss has several calls; `p.grad`, since AccumulateGrad takes over what nobody else has; a hook, or
/// the caller of torch::autograd::grad(), who kept a gradient. So whatever can be found of them is moved out of the way
/// first. Views of gradients, and a tensor that was `p.grad` once, cannot be found.
class RoutedGradients {
 public:
  RoutedGradients(std::vector<at::Tensor> parameters, HandOut kind);

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return buffers_.bytes(); }

  /// Inside the capture of a backward pass: brings what it computed, in the order of the parameters, into the buffers.
  void record(const std::vector<at::Tensor>& computed) const;

  /// Before a replay, on its stream: what was handed out and is still in use gets memory of its own.
  void vacate_buffers();
  /// After a replay, on its stream: the gradients of these parameters.
  [[nodiscard]] std::vector<at::Tensor> hand_out(const std::vector<std::size_t>& which);

 private:
  [[nodiscard]] std::vector<at::Tensor> in_buffers() const;
  [[nodiscard]] bool is_in_buffers(const at::Tensor& tensor) const;

  HandOut kind_;
  std::vector<at::Tensor> parameters_;
  GradientBuffers buffers_;
  std::vector<trace::WeakTensor> handed_out_;  // since the last replay; weak, so that AccumulateGrad may take them over
};

}  // namespace pianola::callable
