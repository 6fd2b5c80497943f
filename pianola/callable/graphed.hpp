#pragma once
#include <pianola/callable/callable.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

namespace pianola {

/// A module or function that captures its own calls: the first ones of each signature run eagerly, the next one is
/// captured, and from then on they are replayed. It needs no samples and no static tensors.
///
///     auto model = pianola::graphed(module);
///     auto step = pianola::graphed([&](const at::Tensor& x, const at::Tensor& target) {
///       optimizer.zero_grad();
///       auto loss = mse_loss(module(x), target);
///       loss.backward();
///       optimizer.step();
///       return loss;
///     });
///
/// The signature of a call is everything that decides which kernels run: shapes, strides, dtypes, devices and requires_grad of
/// its tensors, its other arguments, training flags, grad and inference mode, autocast, algorithms. The last warm-up
/// call shows what the function does: see GraphedKind. A function that trains (a step) returns results without
/// history.
///
/// Results are those of eager, bit for bit. What cannot be captured runs eagerly, and GraphedOptions::on_fallback is
/// told why. What the function reads from elsewhere is frozen: numbers and control flow as they were, tensors at their
/// address. Parameters, buffers and other such tensors that are replaced are noticed as long as nobody else holds the
/// old ones, and the function is captured anew.
///
/// Calls made while a capture is open on this thread run eagerly, and so become part of that capture.
///
/// Threads:  Without gradients any thread may call, and calls wait for each other. With gradients, one call
///           at a time, its backward pass included.
class PIANOLA_API Graphed {
 public:
  Graphed(Callable original, GraphedOptions options);
  Graphed(Graphed&&) noexcept;
  Graphed& operator=(Graphed&&) noexcept;
  ~Graphed();

  /// For a function of tensors that returns one tensor. @throws UsageError  It returns something else.
  template <typename... Tensors>
  at::Tensor operator()(const Tensors&... inputs) {
    const std::array<at::Tensor, sizeof...(Tensors)> list = {inputs...};
    return call_one(list);
  }

  /// Tensors to tensors: the leaves of the result. An undefined tensor stands for None.
  std::vector<at::Tensor> call(std::span<const at::Tensor> inputs);

  /// Any arguments, any result.
  c10::IValue forward(const std::vector<c10::IValue>& inputs);

  /// With GraphedOptions::delay_weight_gradients: computes the gradients of weights that the oldest backward pass has left
  /// for later. @return  False: none has left any, as those of eager calls. @throws GuardError  As GraphedCallable's.
  bool backward_weights();

  /// Forgets all signatures and drops their graphs; the next calls warm up again. Outputs and gradients live on, and
  /// backward passes of calls in flight can still run.
  void reset();

  [[nodiscard]] GraphedInfo info() const;

  /// What it was made from.
  [[nodiscard]] const Callable& original() const noexcept;

 private:
  at::Tensor call_one(std::span<const at::Tensor> inputs);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// @throws UsageError  An option is out of range.
[[nodiscard]] PIANOLA_API Graphed graphed(Callable original, GraphedOptions options = {});

}  // namespace pianola
