#pragma once
#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/callable/parameter_gradients.hpp>
#include <pianola/callable/routed_gradients.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::callable {

/// Where one of a callable's graphs leaves the gradients of parameters that it computes: some it adds into `p.grad`, others
/// go through autograd. Positions are among the parameters of the mode.
struct GradientTargets {
  /// Inside a capture.
  /// @param computed  Per parameter of the mode; those of others are not looked at.
  void record(const std::vector<at::Tensor>& computed) const {
    if (direct) direct->record(select(computed, direct_of));
    if (routed) routed->record(select(computed, routed_of));
  }
  [[nodiscard]] std::size_t bytes() const { return (direct ? direct->bytes() : 0) + (routed ? routed->bytes() : 0); }
  [[nodiscard]] bool is_steady() const noexcept { return !direct || direct->is_steady(); }
  /// A parameter whose gradients somebody watches since the capture, which the graph adds unseen; nullptr if there is none.
  [[nodiscard]] const at::Tensor* hooked_accumulator() const noexcept {
    return direct ? direct->hooked_accumulator() : nullptr;
  }
  /// The same, also of those that go through autograd.
  [[nodiscard]] const at::Tensor* watched_accumulator() const noexcept {
    if (const at::Tensor* hooked = hooked_accumulator(); hooked != nullptr || !routed) return hooked;
    for (const at::Tensor& one : routed->parameters()) {
      const auto* meta = torch::autograd::impl::get_autograd_meta(one);
      if (meta != nullptr && accumulator_has_hooks(*meta)) return &one;
    }
    return nullptr;
  }
  void release() noexcept {
    direct.reset();
    routed.reset();
  }

  std::vector<std::size_t> direct_of, routed_of;
  std::optional<ParameterGradients> direct;  ///< That the graph adds itself; none where there are no such.
  std::optional<RoutedGradients> routed;     ///< That go through autograd.
};

}  // namespace pianola::callable
