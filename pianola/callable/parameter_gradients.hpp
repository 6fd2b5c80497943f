#pragma once
#include <pianola/callable/gradient_buffers.hpp>
#include <pianola/graph/placement.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

// Note [Gradients at a fixed place]
// A backward graph adds each parameter's gradient into a buffer whose address never changes; what is left to do per
// call is to see that `p.grad` is that buffer, which is a few comparisons a parameter. A `p.grad` that is undefined
// becomes the buffer, cleared; one that the user put there gets the result added after the replay, as eager would; one
// that somebody keeps although `p.grad` is another by now keeps its value. Clearing fills with -0.0, the only number x
// for which x + g is g bit for bit, g = -0.0 included.

class ParameterGradients;

/// The callables of one call, whose gradients are set to none together: one clears the buffers of all.
class GradientGroup {
 public:
  void add(ParameterGradients& member) { members_.push_back(&member); }
  void remove(const ParameterGradients& member) { std::erase(members_, &member); }
  /// Clears the buffers of every member whose gradients are all undefined and looked at by nobody.
  void clear_idle();
  /// Makes the current stream wait until that is done.
  void wait_for_clear() const;

 private:
  std::vector<ParameterGradients*> members_;
  std::optional<c10::Stream> cleared_on_;
};

/// GradPolicy::accumulate: gradients of one callable, in one mode, that its backward graphs add into `p.grad`. One
/// buffer per parameter, for all slots; autograd does not see them.
class ParameterGradients {
 public:
  /// @param before  The gradients that the parameters had when capture began. Defined ones serve as buffers, so that a
  ///                trainer's own gradient memory stays in use.
  ParameterGradients(std::vector<at::Tensor> parameters, const std::vector<at::Tensor>& before,
                     std::shared_ptr<GradientGroup> group);
  ParameterGradients(const ParameterGradients&) = delete;
  ParameterGradients& operator=(const ParameterGradients&) = delete;
  ~ParameterGradients();

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return buffers_.bytes(); }

  /// When all backward passes are captured.
  void finish() { buffers_.count_references(/*aliases=*/1); }

  /// Inside the capture of a backward pass: adds what it computed, in the order of the parameters, into the buffers.
  void record(const std::vector<at::Tensor>& computed) const;

  /// Whether all is as it is in the middle of training: each `p.grad` our buffer, no hooks. In one tight loop.
  [[nodiscard]] bool is_steady() const noexcept;
  /// The first parameter that got a hook since capture, which the graph would not call; nullptr if there is none.
  [[nodiscard]] const at::Tensor* hooked() const noexcept;
  /// The same of hooks of its AccumulateGrad node alone, which are there to see every gradient: a call is refused
  /// before it computes anything.
  [[nodiscard]] const at::Tensor* hooked_accumulator() const noexcept;
  /// Before and after a replay, on its stream. `wanted` is false where the backward pass is for other tensors' gradients
  /// alone (torch::autograd::grad): parameters must then keep theirs.
  /// Then `apart` lets the replay leave this pass's gradients alone in the buffers, for computed().
  /// `left_alone` are positions of parameters that no gradient flows to this time: theirs stay as they are, too.
  void before_replay(bool wanted, bool steady, const std::vector<std::size_t>& left_alone = {}, bool apart = false);
  /// Between replay and after_replay(), where they are `apart`: the caller's own copies.
  [[nodiscard]] std::vector<at::Tensor> computed(const std::vector<std::size_t>& which) const;
  void after_replay();
  /// In place of after_replay(), where the replay threw: gradients are what they were.
  void undo_replay();

 private:
  friend class GradientGroup;
  struct Place {                          // what is_steady() compares, densely
    torch::autograd::AutogradMeta* meta;  // of the parameter
    const c10::TensorImpl* exposed;       // what `p.grad` is when it is ours
    graph::Placement placement;           // of it, while it looks at the buffer
  };
  struct Replay {                          // what is left to do after one
    std::vector<bool> left_alone;          // empty where none is
    bool exposed_all = false;              // every gradient was undefined
    std::vector<std::size_t> exposed;      // else those that were
    std::vector<std::size_t> to_hand_out;  // gradients that are not ours, and get the result
    std::vector<std::size_t> to_restore;   // buffers that somebody else looks at
    std::vector<at::Tensor> saved;         // what those held before
  };

  [[nodiscard]] at::Tensor& gradient(std::size_t i) const;
  [[nodiscard]] bool is_ours(std::size_t i) const noexcept;
  [[nodiscard]] bool is_held_elsewhere(std::size_t i) const;
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] std::vector<std::size_t> all() const;
  [[nodiscard]] bool is_left_alone(std::size_t i) const { return !replay_.left_alone.empty() && replay_.left_alone[i]; }
  void adopt_aliases();
  void let_go_of_moved();
  void renew(std::size_t i);
  void prepare_to_add();
  void expose(std::size_t i);
  void save(std::vector<std::size_t> which);
  void hand_out(const std::vector<at::Tensor>& computed);

  std::vector<Place> places_;
  std::vector<at::Tensor> exposed_;
  std::vector<at::Tensor> parameters_;
  GradientBuffers buffers_;
  std::shared_ptr<GradientGroup> group_;
  bool is_clear_ = false;  // all buffers hold -0.0, and nobody looks at them
  Replay replay_;          // the running one
};

}  // namespace pianola::callable
