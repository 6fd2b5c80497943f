#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <optional>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

// Note [Gradients of a forward pass]
// A function whose backward pass comes from outside may drop gradients: `optimizer.zero_grad(); return loss(model(x), y)`. No operation
// shows it. So an observed call compares what gradients were before with what they are after; of which parameters, the call before has
// shown.
//
//   before     after        a replay
//   a tensor   undefined    drops it
//   a tensor   that tensor  leaves it alone
//   undefined  undefined    leaves it alone
//   any        another      cannot be: the function would have to set one
//
// Nor can it return a gradient that it found: that would be the one of its capture.
//
// Where its code stores into gradients (Python tells into which), those that were left alone may have been so because they were
// there, or were not: a graph is for calls that find them alike.
// For steps, which make gradients by themselves, see Note [Gradients of a step].

/// Gradients of leaves before a run. Keeps nothing alive.
class GradientsBefore {
 public:
  GradientsBefore() = default;
  explicit GradientsBefore(const std::vector<at::Tensor>& leaves);

  /// Memory of those that are still there.
  [[nodiscard]] ska::flat_hash_set<const c10::StorageImpl*> found() const;

 private:
  friend class ForwardGradients;
  struct One {
    trace::WeakTensor leaf;
    trace::WeakTensor gradient;
  };
  std::vector<One> all_;
};

/// What a run without a backward pass did to them.
class ForwardGradients {
 public:
  /// In words, where they are not as found.
  static constexpr const char* kDifference =
      "gradients that its code changes are there in some of its calls, and in others not";

  ForwardGradients() = default;
  /// After the run. @param stored   Leaves into whose gradients its code stores.
  ///                @param results  What it returned.
  ForwardGradients(const GradientsBefore& before, const std::vector<trace::WeakTensor>& stored,
                   const std::vector<at::Tensor>& results);

  /// Why no replay can do the same.
  [[nodiscard]] const std::optional<Diagnosis>& obstacle() const noexcept { return obstacle_; }
  /// Whether a call finds those alike that may decide. In one tight loop.
  [[nodiscard]] bool are_as_found() const;
  /// Behind the launch of a replay.
  void drop() const;

 private:
  struct Leaf {
    trace::WeakTensor tensor;
    torch::autograd::AutogradMeta* meta;
    bool was_defined;
  };
  void compare(const GradientsBefore::One& before, bool is_stored);

  std::vector<Leaf> dropped_;
  std::vector<Leaf> may_decide_;
  std::optional<Diagnosis> obstacle_;
};

}  // namespace pianola::callable
