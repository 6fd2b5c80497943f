#pragma once
#include <pianola/core/export.hpp>
#include <pianola/fp8/quantize.hpp>
#include <pianola/fp8/recipe.hpp>
#include <pianola/fp8/scales.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace pianola::fp8 {

/// What a linear layer has besides its parameters: the place of its scales, and its quantised weight, where that is kept.
class PIANOLA_API LinearState {
 public:
  /// @param scales  nullptr: the layer's recipe needs none.
  LinearState(Recipe recipe, std::shared_ptr<const ScaleTable> scales, std::int64_t layer);

  [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
  /// x @ weight.T + bias as the innermost region of this thread says: in 8 bits, forward and backward; else as torch's linear.
  ///
  /// @param x       [..., in_features]; in 8 bits in_features and out_features are multiples of 16, and in training all the others
  ///                together. @param weight [out_features, in_features]. @param bias [out_features], or undefined.
  /// @param trains  Amaxes are noted, for delayed scaling.
  /// @return        [..., out_features] of x's type, or of torch's autocast's.
  /// @throws UsageError        Shapes do not fit; the region's recipe has scales that this layer lacks; a kept weight is missing, or the
  ///                           weight was written since.
  /// @throws UnsupportedError  The device has no products of 8 bits.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool trains);

 private:
  [[nodiscard]] const Recipe& recipe_in(const std::optional<Recipe>& of_region) const;
  [[nodiscard]] Quantized quantized_weight(const at::Tensor& weight, const QuantizeOptions& options, bool is_first);

  Recipe recipe_;
  std::shared_ptr<const ScaleTable> scales_;
  std::int64_t layer_;
  Quantized kept_;  // the weight of the first microbatch
  bool kept_powers_of_two_ = false;
  bool ran_in_region_ = false;  // the last time
  std::uint32_t kept_version_ = 0;
  std::shared_ptr<std::uint64_t> times_kept_ = std::make_shared<std::uint64_t>(0);
};

/// torch::nn::Linear whose products are in 8 bits inside of a region (fp8::Autocast). share_scales() says how.
class PIANOLA_API Float8LinearImpl : public torch::nn::LinearImpl {
 public:
  using LinearImpl::LinearImpl;

  /// As LinearState::forward(). @throws UsageError  share_scales() was not called for it, and a region is enabled.
  at::Tensor forward(const at::Tensor& x);

 private:
  friend PIANOLA_API void share_scales(torch::nn::Module& model, const Recipe& recipe);
  std::shared_ptr<LinearState> state_;
};
TORCH_MODULE(Float8Linear);

/// All Float8Linear of the model get this recipe, and with delayed scaling their scales in one table, whose tensors are buffers of
/// `model`: `fp8_scale`, `fp8_history`, `fp8_updates`. Call it once, when the model is on its device, and before it is captured.
/// @throws UsageError  It has none, or it was called before.
PIANOLA_API void share_scales(torch::nn::Module& model, const Recipe& recipe = {});

}  // namespace pianola::fp8
