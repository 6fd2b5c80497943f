#pragma once
#include <pianola/cuda/compiler.hpp>
#include <pianola/fp8/quantize.hpp>

#include <cuda.h>

namespace pianola::fp8 {

/// A kernel of quantize_code.hpp for the current device, compiled when it is first asked for.
struct KernelKind {
  c10::ScalarType element = c10::kBFloat16;  ///< bfloat16, float16 or float32.
  c10::ScalarType type = c10::kFloat8_e4m3fn;
  Granularity granularity = Granularity::given;
  bool powers_of_two = false;
  bool notes_amaxes = false;  ///< The kernel before, which reads what the scales are made of.

  bool operator<(const KernelKind& other) const;
};

[[nodiscard]] KernelSource source_of(const KernelKind& kind);

/// Whether the current device can run them (compute capability 8.9 and above), and they can be compiled. Else what torch's own operators
/// make of a tensor is the same.
[[nodiscard]] bool has_quantize_kernels();

/// Of the current device: 90 is 9.0.
[[nodiscard]] int compute_capability();

/// Threads: any. @throws DeviceError  It cannot be compiled or loaded.
[[nodiscard]] CUfunction quantize_kernel(const KernelKind& kind);

}  // namespace pianola::fp8
