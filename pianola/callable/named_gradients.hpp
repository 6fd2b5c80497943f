#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <span>

namespace pianola {

/// Lets autograd see these parameters in all calls of graphed callables whose backward can still come, also where the
/// graph adds their gradients itself (GradPolicy::accumulate): torch::autograd::grad() and backward() that name them then
/// find them. Call it before these; Python does so by itself. Takes time in proportion to all graphed parameters of the
/// process, and changes nothing for other backward passes.
PIANOLA_API void expose_to_autograd(std::span<const at::Tensor> parameters);

}  // namespace pianola
