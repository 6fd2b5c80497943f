#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

struct HostEffects;

// Note [Gradients of a forward pass]
// A function whose backward pass comes from outside may drop gradients: `optimizer.zero_grad(); return loss(model(x), y)`. No operation
// shows it. So an observed call compares what gradients were before with what they are after:
//
//   before     after        a replay
//   a tensor   undefined    drops it
//   a tensor   that tensor  leaves it alone
//   undefined  undefined    leaves it alone
//   any        another      cannot be: the function would have to set one
//
// Of a call from Python it is known into which gradients its code may store; of others nothing is thought. What it does to one that is
// there tells nothing of what it does where there is none, and the other way round, so that such a graph is for calls that find what
// was found in a call that was observed. torch's own zero_grad() does the same to both. Of a C++ function nobody knows what it may
// store: parameters of the call before count that a call was seen to drop the gradients of, and where a backward pass is to come alone;
// those of a function that only computes may be trained on another thread meanwhile.
//
// Nor can a replay return a gradient: under capture there is none. And its inputs are copies, whose gradients are not the caller's.
// For steps, which make gradients by themselves, see Note [Gradients of a step].

/// Gradients of leaves before a run. Keeps nothing alive.
class GradientsBefore {
 public:
  struct One {
    trace::WeakTensor leaf;
    trace::WeakTensor gradient;
  };

  GradientsBefore() = default;
  explicit GradientsBefore(const std::vector<at::Tensor>& leaves);

  [[nodiscard]] const std::vector<One>& all() const noexcept { return all_; }

 private:
  std::vector<One> all_;
};

/// What one run without a backward pass did to gradients.
class GradientChanges {
 public:
  struct Leaf {
    trace::WeakTensor tensor;
    bool saw_none, saw_defined;  // what it does where it finds none, and where it finds one
    bool drops = false;          // that one
  };

  GradientChanges() = default;
  /// After the run. @param leaves   That its operations use.
  ///                @param results  What it returned and has not made; undefined in place of others.
  GradientChanges(const GradientsBefore& before, const HostEffects& effects, std::span<const at::Tensor> inputs,
                  const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& results);

  [[nodiscard]] const std::vector<Leaf>& leaves() const noexcept { return leaves_; }
  /// Why no replay can do the same.
  [[nodiscard]] const std::optional<Diagnosis>& obstacle() const noexcept { return obstacle_; }

 private:
  void refuse(Diagnosis why) {
    if (!obstacle_) obstacle_ = std::move(why);
  }
  void refuse_inputs(const GradientsBefore& before, std::span<const at::Tensor> inputs);
  void compare(const GradientsBefore::One& before, bool is_told);
  void note_new(const at::Tensor& leaf);
  void note_cleared(const at::Tensor& leaf);
  void refuse_results(const GradientsBefore& before, const std::vector<at::Tensor>& leaves,
                      const std::vector<at::Tensor>& results);

  std::vector<Leaf> leaves_;
  std::optional<Diagnosis> obstacle_;
};

/// What the calls of one signature do to gradients, as far as they have shown.
class ForwardGradients {
 public:
  /// In words, where a call finds what none has found that was observed.
  static constexpr const char* kDifference =
      "gradients that its code changes are there in some of its calls, and in others not";

  void note(const GradientChanges& changes);

  /// Whether a call finds what one has found that was observed. In one tight loop.
  [[nodiscard]] bool are_as_found() const;
  /// Behind the launch of a replay.
  void drop() const;
  /// That are still there.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;

 private:
  struct Leaf {
    GradientChanges::Leaf seen;
    torch::autograd::AutogradMeta* meta;
  };
  std::vector<Leaf> leaves_;
};

/// Puts gradients back that were dropped while it lived: by runs of a capture, which are nobody's calls.
class DroppedGradients {
 public:
  explicit DroppedGradients(const std::vector<at::Tensor>& leaves);
  DroppedGradients(const DroppedGradients&) = delete;
  DroppedGradients& operator=(const DroppedGradients&) = delete;
  ~DroppedGradients();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;  // leaves and gradients
};

}  // namespace pianola::callable
