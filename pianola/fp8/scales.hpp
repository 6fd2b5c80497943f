#pragma once
#include <pianola/core/export.hpp>
#include <pianola/fp8/recipe.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace pianola::fp8 {

// Note [Delayed scales]
// A tensor is cast by a scale that its amax of earlier steps gave, so that it is read once; meanwhile its new amax is noted in the
// first row of the history. All tensors of a model have theirs in one table, so that one operation computes all scales, and one
// collective tells all ranks the largest. That is done where an outermost region ends, for all that was noted since the last one: the
// inputs and weights of this forward pass, and the gradients of the backward pass before it, whose scales come in time for the next.
// For each tensor:
//
//     a = history[0];  nothing was noted (0), or it is not finite: the tensor's column stays as it is, and history[0] becomes 0
//     history = [0, history[2], ..., history[length - 1], a]
//     amax  = a, or the largest of the history
//     scale = largest(type) / 2^margin / amax;  float32's largest where that is infinite
//
// Source: Transformer Engine's delayed_scaling.cu, whose order of rows this is. Otherwise than there a tensor of which nothing was
// noted keeps its history: the weights of a cached microbatch, a layer that did not run, gradients in an evaluation. And an amax that
// is not finite is left out, where there it blocks the scale for as long as it is in the history.

/// The tensors of a layer that have a scale.
enum class Role : std::uint8_t { input = 0, weight = 1, gradient = 2 };

/// The scales of a model's tensors, with delayed scaling. What it holds are buffers of a module, and part of a checkpoint.
class PIANOLA_API ScaleTable {
 public:
  /// New ones: all scales 1, nothing noted. @param layers  Each has three tensors. @throws UsageError  As Recipe::check().
  ScaleTable(std::int64_t layers, const Recipe& recipe, c10::Device device);
  /// Those that a checkpoint had, or that were moved. @param scale    float32 [3 * layers].
  ///                                                  @param history  float32 [recipe.amax_history_length, 3 * layers].
  ///                                                  @param updates  int64 [].
  /// @throws UsageError  They are not; a history of another length says so.
  ScaleTable(const at::Tensor& scale, const at::Tensor& history, const at::Tensor& updates, const Recipe& recipe);

  [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
  [[nodiscard]] std::int64_t layers() const noexcept;
  /// float32 [], views: what to cast with, and where to note an amax. @throws UsageError  There is no such layer.
  [[nodiscard]] at::Tensor scale_of(std::int64_t layer, Role role) const {
    return scale_.select(0, place_of(layer, role));
  }
  [[nodiscard]] at::Tensor noted_of(std::int64_t layer, Role role) const {
    return noted().select(0, place_of(layer, role));
  }

  /// Scales from what was noted: one operation, in place.
  void update() const;
  /// float32 [tensors], a view: the amaxes that were noted. A collective makes each the largest of all ranks.
  [[nodiscard]] at::Tensor noted() const { return history_.select(0, 0); }

  [[nodiscard]] const at::Tensor& scale() const noexcept { return scale_; }
  [[nodiscard]] const at::Tensor& history() const noexcept { return history_; }
  [[nodiscard]] const at::Tensor& updates() const noexcept { return updates_; }

 private:
  [[nodiscard]] std::int64_t place_of(std::int64_t layer, Role role) const;

  Recipe recipe_;
  at::Tensor scale_, history_, updates_;
  at::Tensor limits_;  // float32 [tensors]: the largest numbers of their types
};

}  // namespace pianola::fp8
