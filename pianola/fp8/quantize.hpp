#pragma once
#include <pianola/core/export.hpp>
#include <pianola/fp8/recipe.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace pianola::fp8 {

// Note [Quantised twice]
// The products of 8 bits sum along the last dimension of both factors, and both lie row by row. A layer's three products sum along
// each dimension of its input, weight and gradient: the output along the columns of input and weight, the input's gradient along the
// rows of the weight, the weight's gradient along the rows of the input. So a matrix is quantised as it lies, and transposed. With one
// scale for all of it that is the same bytes in another order; with scales along the sum they are other scales and other bytes.
//
//     scale    = largest(type) / amax,  1 where amax is 0 or not finite, float32's largest where that is infinite
//     quantised = cast(clamp(float32(x) * scale, -largest, largest)), to the nearest, ties to even
//     inverse  = 1 / scale, what products multiply by
//
// What is infinite stays so, or becomes NaN where the type has no infinity (e4m3), so that whoever looks for an overflow finds it;
// Transformer Engine makes it the largest number. NaN stays NaN. amax is the largest magnitude of the tensor, row or block; NaN is left
// out, as by fmax. With powers of two the scale is rounded down
// to one: its mantissa is cleared. Sources: Transformer Engine's compute_scale_from_amax and delayed_scaling kernels, whose numbers
// these are; NVIDIA's FP8 Primer.

/// How much of a matrix has one scale.
enum class Granularity : std::uint8_t {
  given,         ///< All of it, and the scale is given (delayed scaling).
  whole,         ///< All of it.
  row,           ///< A row.
  block_1x128,   ///< 128 elements of a row.
  block_128x128  ///< 128 rows and columns.
};

/// A matrix of 8 bits that lies row by row, and what to multiply it by. The product sums along its columns.
struct Factor {
  at::Tensor data;     ///< [rows, columns], Float8_e4m3fn or Float8_e5m2.
  at::Tensor inverse;  ///< float32: [], [rows, 1], [rows, columns / 128], or [rows / 128, columns / 128].
  Granularity granularity = Granularity::whole;
};

/// A matrix as it lies, and transposed; undefined where that was not wanted.
struct Quantized {
  Factor rows;
  Factor columns;  ///< The matrix transposed.
};

struct QuantizeOptions {
  c10::ScalarType type = c10::kFloat8_e4m3fn;
  Granularity granularity = Granularity::whole;
  bool powers_of_two = false;
  bool rows = true, columns = false;  ///< What is wanted.
  at::Tensor scale = {};              ///< Granularity::given: float32 [].
  at::Tensor amax = {};               ///< float32 [], optional: the largest magnitude is noted there, if it is larger.
};

/// @param values  [rows, columns] of a floating type. 128 must divide what blocks are made of.
/// @throws UsageError  It is no such matrix.
[[nodiscard]] PIANOLA_API Quantized quantize(const at::Tensor& values, const QuantizeOptions& options);

/// The same, into tensors that an earlier call gave, where `is_wanted` (bool [], on the device) is true; else they stay as they are. The
/// device reads that: a graph may be replayed with either.
PIANOLA_API void quantize_into(const Quantized& out, const at::Tensor& values, const QuantizeOptions& options,
                               const at::Tensor& is_wanted);

/// float32 [rows, columns]: what the bytes stand for.
[[nodiscard]] PIANOLA_API at::Tensor dequantize(const Factor& factor);

/// float32, elementwise: the scale of an amax.
[[nodiscard]] PIANOLA_API at::Tensor scale_of(const at::Tensor& amax, c10::ScalarType type, bool powers_of_two);

}  // namespace pianola::fp8
