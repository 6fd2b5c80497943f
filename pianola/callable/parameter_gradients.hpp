#pragma once
#include <pianola/callable/options.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

// Note [Gradients at a fixed place]
// A backward graph writes each parameter's gradient into a buffer whose address never changes; what is left to do per
// call is to see that `p.grad` is that buffer, which is one comparison a parameter. With GradPolicy::accumulate the graph
// adds. A `p.grad` that is undefined becomes the buffer, cleared; one that the user put there gets the result added
// after the replay, as eager would; one that somebody keeps although `p.grad` is another by now keeps its value. Clearing fills with -0.0, the only number x for which x + g is g bit for bit,
// g = -0.0 included.

/// The gradients that the backward graphs of one callable, in one mode, write; one buffer per parameter, for all slots.
class ParameterGradients {
 public:
  /// @param before  The gradients that the parameters had when capture began. With `accumulate`, defined ones serve as
  ///                buffers, so that a trainer's own gradient memory stays in use.
  ParameterGradients(std::vector<at::Tensor> parameters, const std::vector<at::Tensor>& before, GradPolicy policy);

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Inside the capture of a backward pass: brings what it computed, in the order of the parameters, into the buffers.
  void record(const std::vector<at::Tensor>& computed) const;

  /// The first parameter that got a hook since capture, which the graph would not call; nullptr if there is none.
  [[nodiscard]] const at::Tensor* hooked() const noexcept;
  /// Before and after a replay, on its stream. `wanted` is false where the backward pass is for other tensors' gradients
  /// alone (torch::autograd::grad): parameters must then keep theirs.
  void before_replay(bool wanted);
  void after_replay(bool wanted);
  /// Copies of the buffers, for gradients that go on through autograd.
  [[nodiscard]] std::vector<at::Tensor> copies() const;

 private:
  void make_buffers(const std::vector<at::Tensor>& before);
  [[nodiscard]] bool is_ours(std::size_t i) const;
  [[nodiscard]] bool is_held_elsewhere(std::size_t i) const;
  [[nodiscard]] std::vector<std::size_t> all() const;
  void prepare_to_add();
  void move_out_of_alias();
  void clear(const std::vector<std::size_t>& which) const;
  void expose(std::size_t i);
  void save(std::vector<std::size_t> which);
  void hand_out(const std::vector<std::size_t>& which);

  GradPolicy policy_;
  std::vector<torch::autograd::AutogradMeta*> meta_;  // of the parameters
  std::vector<at::Tensor> exposed_;                   // what `p.grad` is when it is ours
  std::vector<const void*> address_;                  // of the buffers

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> buffers_;    // never handed out, so that nobody can change what they look at
  std::vector<at::Tensor> blocks_;     // memory of the buffers that are not the user's own, one per dtype
  std::vector<std::size_t> block_of_;  // per buffer; kNoBlock for the user's own
  std::vector<std::size_t> in_block_;  // buffers per block
  std::size_t bytes_ = 0;

  // Of the running replay:
  std::vector<std::size_t> to_hand_out_;  // gradients that are not ours, and get the result afterwards
  std::vector<std::size_t> to_restore_;   // buffers that somebody else looks at
  std::vector<at::Tensor> saved_;         // what those held before
};

}  // namespace pianola::callable
