#pragma once
#include <pianola/graph/private_tensors.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::training {

/// What a fused operation takes, row by row: a parameter, its gradient, its state.
struct StepLists {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<std::vector<at::Tensor>> state;  ///< A list for each kind of state; those like the parameters first.
};

/// The parameters of a group that have one dtype, which is what one fused operation takes. Lists are made once; a step
/// whose parameters all have gradients allocates nothing here.
class ParameterBucket {
 public:
  /// @param indices  Places of the parameters in their group, for messages.
  /// @param lists    Without gradients.
  ParameterBucket(std::size_t group, std::vector<std::size_t> indices, StepLists lists);

  /// Has every step compute on float32 copies, state included, and round once at its end.
  void widen() noexcept { widened_ = true; }
  [[nodiscard]] c10::ScalarType dtype() const { return all_.parameters.front().scalar_type(); }

  [[nodiscard]] std::size_t size() const noexcept { return all_.parameters.size(); }
  [[nodiscard]] const std::vector<std::size_t>& indices() const noexcept { return indices_; }

 private:
  friend class BucketStep;

  StepLists* gather();
  void check(std::size_t row, const at::Tensor& gradient) const;
  [[nodiscard]] bool fits(std::size_t row, const at::Tensor& gradient) const;
  void select();
  void release() noexcept;

  // Tensors that the kernels cannot take as they are, and what they take in their place.
  struct Copies {
    std::vector<at::Tensor> originals, copies;
    at::Tensor add(const at::Tensor& original, const at::Tensor& layout, c10::ScalarType dtype);
  };

  std::size_t group_;
  std::vector<std::size_t> indices_;
  StepLists all_;
  std::vector<graph::PrivateTensors> own_;  // all state
  StepLists some_;                          // rows with a gradient, where not all have one that fits
  Copies written_, gradients_;
  bool widened_ = false;
};

/// One step of a bucket: gathers the gradients as they are now, and lets go of them at the end.
class BucketStep {
 public:
  /// @throws UsageError  A gradient is sparse or of another dtype or device; a parameter has changed.
  explicit BucketStep(ParameterBucket& bucket);
  BucketStep(const BucketStep&) = delete;
  BucketStep& operator=(const BucketStep&) = delete;
  ~BucketStep() { bucket_.release(); }

  /// Whether any parameter has a gradient.
  explicit operator bool() const noexcept { return lists_ != nullptr; }
  const StepLists* operator->() const noexcept { return lists_; }
  /// Whether all have one.
  [[nodiscard]] bool whole() const noexcept { return lists_->parameters.size() == bucket_.size(); }

  /// Puts back what was computed on copies, gradients only where the operation wrote them; and tells autograd that the
  /// parameters were written, which fused operations do not.
  void finish(bool gradients);

 private:
  ParameterBucket& bucket_;
  StepLists* lists_;
};

/// As operations take tensors that may be missing.
[[nodiscard]] inline std::optional<at::Tensor> as_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// A bucket for each dtype, in the order in which it comes first.
/// @param state  For each kind of state a tensor per parameter.
[[nodiscard]] std::vector<ParameterBucket> make_buckets(std::size_t group, const std::vector<at::Tensor>& parameters,
                                                        const std::vector<std::vector<at::Tensor>>& state);

}  // namespace pianola::training
