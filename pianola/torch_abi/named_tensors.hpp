#pragma once
#include <c10/core/DispatchKeySet.h>

// Tensors with named dimensions, which torch 2.15 has no more.

#if __has_include(<ATen/core/NamedTensor.h>)
#define PIANOLA_TORCH_HAS_NAMED_TENSORS 1
#else
#define PIANOLA_TORCH_HAS_NAMED_TENSORS 0
#endif

namespace pianola::torch_abi {

/// What such a tensor has among its keys; empty where there is none.
#if PIANOLA_TORCH_HAS_NAMED_TENSORS
inline constexpr c10::DispatchKeySet kNamedTensors(c10::DispatchKey::Named);
#else
inline constexpr c10::DispatchKeySet kNamedTensors;
#endif

}  // namespace pianola::torch_abi
