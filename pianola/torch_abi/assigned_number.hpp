#pragma once
#include <ATen/TensorIndexing.h>

namespace pianola::torch_abi {

/// Whether a number that is assigned by index, `x[0] = 7`, is made a tensor first, which fill_.Tensor is given; in torch 2.15 fill_.Scalar
/// is given the number itself.
template <typename Tensor = at::Tensor, typename Scalar = at::Scalar>
inline constexpr bool kAssignsNumbersAsTensors = !requires(const Tensor& x, const Scalar& number) {
  at::indexing::copy_to(x, number);
};

}  // namespace pianola::torch_abi
