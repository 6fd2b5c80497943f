#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace pianola {

class FiniteWatch;
class Optimizer;

struct ClipGradOptions {
  double norm_type = 2;  ///< p of the p-norm; infinity for the largest absolute value.
  /// torch's error_if_nonfinite, deferred: this notes norms that are NaN or infinite, and stops training a step later. They
  /// scale the gradients all the same; FiniteWatch::found_inf() keeps the parameters as they were.
  FiniteWatch* error_if_nonfinite = nullptr;
  /// What to call the tensors there, one for each that is given; empty: by number.
  std::vector<std::string> names = {};
};

/// Scales the gradients of the parameters, in place, so that their norm, taken over all of them as one vector, is at
/// most `max_norm`: torch.nn.utils.clip_grad_norm_ with foreach=True, bit for bit. The host reads nothing.
///
/// @param parameters  Those without a gradient are left out.
/// @return  The norm before, [] on the device of the first gradient, in the dtype that torch gives it; 0 on the CPU
///          where there is no gradient.
/// @throws UsageError  `max_norm` is negative or NaN, a parameter is undefined, none of them is a parameter (gradients
///                     belong to clip_gradients_norm_), or the names are not as many.
/// Streams:  The current one. Does not synchronize.
PIANOLA_API at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm,
                                       const ClipGradOptions& options = {});
/// Of all parameters of an optimizer.
PIANOLA_API at::Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm,
                                       const ClipGradOptions& options = {});
/// The same for gradients themselves, as torch::autograd::grad returns them. @throws UsageError  As above; one is
/// undefined.
PIANOLA_API at::Tensor clip_gradients_norm_(std::span<const at::Tensor> gradients, double max_norm,
                                            const ClipGradOptions& options = {});

/// Brings each element of the parameters' gradients into [-clip_value, clip_value], in place:
/// torch.nn.utils.clip_grad_value_ with foreach=True, bit for bit.
/// @throws UsageError  `clip_value` is negative or NaN, or as clip_grad_norm_().
PIANOLA_API void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value);
PIANOLA_API void clip_grad_value_(const Optimizer& optimizer, double clip_value);

}  // namespace pianola
