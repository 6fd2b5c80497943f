#pragma once
#include <pianola/core/export.hpp>
#include <pianola/fp8/quantize.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace pianola::fp8 {

/// a @ b.T: [rows of a, rows of b] of `type`. On CUDA by torch's _scaled_mm; on the CPU a float32 product of what the bytes stand for,
/// which sums in another order: equal within rounding, not bit by bit. The rules of shapes are the GPU's on both: the number of
/// columns, and of b's rows, is a multiple of 16, and not both are e5m2.
/// @param bias               [rows of b], added; of any floating type.
/// @param fast_accumulation  CUDA: sums are kept in fewer bits, as Transformer Engine does in the forward pass.
/// @throws UsageError        The factors do not fit.
/// @throws UnsupportedError  The device has no products of 8 bits.
[[nodiscard]] PIANOLA_API at::Tensor scaled_product(const Factor& a, const Factor& b, c10::ScalarType type,
                                                    bool fast_accumulation,
                                                    const std::optional<at::Tensor>& bias = std::nullopt);

/// @throws UnsupportedError  CUDA before compute capability 8.9 has no products of 8 bits; blocks want 9.0.
PIANOLA_API void check_device(const c10::Device& device, const Recipe& recipe);

}  // namespace pianola::fp8
