#include <pianola/fp8/scales.hpp>

#include <pianola/core/error.hpp>
#include <pianola/fp8/scales_operation.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pianola::fp8 {
namespace {

constexpr std::int64_t kRoles = 3;

}  // namespace

void update_by_operators(const at::Tensor& history, const at::Tensor& scale, const at::Tensor& updates,
                         const at::Tensor& limits, double divisor, bool most_recent, std::int64_t interval) {
  const at::NoGradGuard no_grad;
  const at::Tensor noted = history.select(0, 0).clone();
  const at::Tensor is_noted = noted.ne(0).logical_and_(at::isfinite(noted));
  const std::int64_t length = history.size(0);
  const at::Tensor none = at::zeros({1, history.size(1)}, history.options());
  // With one row the last amax stands nowhere else than in the scale.
  const at::Tensor rolled = length == 1 ? none : at::cat({none, history.slice(0, 2, length), noted.unsqueeze(0)});
  const at::Tensor kept = length == 1 ? none : at::cat({none, history.slice(0, 1, length)});
  history.copy_(at::where(is_noted, rolled, kept));
  const at::Tensor amax = most_recent || length == 1 ? noted : at::amax(history, 0);
  const at::Tensor made = at::clamp_max(limits / divisor / amax, std::numeric_limits<float>::max());
  const at::Tensor is_due = at::remainder(updates, interval).eq(0).logical_and(is_noted);
  scale.copy_(at::where(is_due, made, scale));
  updates.add_(1);
}

TORCH_LIBRARY_FRAGMENT(pianola, library) {
  library.def(
      "fp8_update_scales_(Tensor(a!) history, Tensor(b!) scale, Tensor(c!) updates, Tensor limits, float divisor, bool "
      "most_recent, int interval) -> ()");
}
TORCH_LIBRARY_IMPL(pianola, CompositeExplicitAutograd, library) {
  library.impl("fp8_update_scales_", &update_by_operators);
}

ScaleTable::ScaleTable(std::int64_t layers, const Recipe& recipe, c10::Device device)
    : ScaleTable(at::ones({kRoles * layers}, at::TensorOptions(device).dtype(at::kFloat)),
                 at::zeros({std::max<std::int64_t>(recipe.amax_history_length, 0), kRoles * layers},
                           at::TensorOptions(device).dtype(at::kFloat)),
                 at::zeros(at::IntArrayRef(), at::TensorOptions(device).dtype(at::kLong)), recipe) {}

ScaleTable::ScaleTable(const at::Tensor& scale, const at::Tensor& history, const at::Tensor& updates,
                       const Recipe& recipe)
    : recipe_(recipe), scale_(scale), history_(history), updates_(updates) {
  recipe.check();
  if (history.dim() == 2 && history.size(0) != recipe.amax_history_length) {
    throw UsageError({.what = fmt::format("amax histories of length {}, where the recipe has {}", history.size(0),
                                          recipe.amax_history_length),
                      .fix = "load a checkpoint into a model that was converted with its recipe"});
  }
  const bool fits = scale.dim() == 1 && scale.size(0) % kRoles == 0 && history.dim() == 2 &&
                    history.size(1) == scale.size(0) && updates.dim() == 0 && scale.scalar_type() == at::kFloat &&
                    history.scalar_type() == at::kFloat && updates.scalar_type() == at::kLong &&
                    history.device() == scale.device() && updates.device() == scale.device();
  if (!fits) {
    throw UsageError(
        {.what = fmt::format("scales, histories and updates must be Float [3 layers], Float [length, 3 layers] "
                             "and Long [] on one device, got {} [{}], {} [{}] and {} [{}]",
                             c10::toString(scale.scalar_type()), fmt::join(scale.sizes(), ", "),
                             c10::toString(history.scalar_type()), fmt::join(history.sizes(), ", "),
                             c10::toString(updates.scalar_type()), fmt::join(updates.sizes(), ", ")),
         .fix = "leave them float32: module.half() and module.double() are not for them"});
  }
  const auto forward = static_cast<float>(largest_of(recipe.forward_type()));
  const auto backward = static_cast<float>(largest_of(recipe.gradient_type()));
  limits_ = at::tensor({forward, forward, backward}, at::kFloat).repeat({layers()}).to(scale.device());
}

std::int64_t ScaleTable::layers() const noexcept { return scale_.size(0) / kRoles; }

std::int64_t ScaleTable::place_of(std::int64_t layer, Role role) const {
  if (layer < 0 || layer >= layers()) {
    throw UsageError({.what = fmt::format("there are scales of {} layers, and none of layer {}", layers(), layer)});
  }
  return kRoles * layer + static_cast<std::int64_t>(role);
}

void ScaleTable::update() const {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("pianola::fp8_update_scales_", "")
                             .typed<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         double, bool, std::int64_t)>();
  op.call(history_, scale_, updates_, limits_, std::ldexp(1.0, recipe_.margin),
          recipe_.amax_compute == AmaxCompute::most_recent, recipe_.interval);
}

}  // namespace pianola::fp8
