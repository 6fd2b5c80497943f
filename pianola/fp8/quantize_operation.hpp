#pragma once
#include <pianola/fp8/quantize.hpp>

#include <cstdint>
#include <optional>

namespace pianola::fp8 {

using MaybeTensor = std::optional<at::Tensor>;

/// What the operator pianola::fp8_quantize_ is asked for, besides the matrix. It is one operation of a step: what it is made of is no
/// observer's, and a device may have kernels of its own.
struct QuantizeRequest {
  c10::ScalarType type = c10::kFloat8_e4m3fn;
  Granularity granularity = Granularity::whole;
  bool powers_of_two = false;
  MaybeTensor scale = {}, amax = {};
  MaybeTensor is_wanted = {};  ///< bool []: where it is false, all stays as it is.
  MaybeTensor rows = {}, rows_inverse = {}, columns = {}, columns_inverse = {};
};

/// As the dispatcher gives it.
inline QuantizeRequest quantize_request(c10::ScalarType type, std::int64_t granularity, bool powers_of_two,
                                        const MaybeTensor& scale, const MaybeTensor& amax, const MaybeTensor& is_wanted,
                                        const MaybeTensor& rows, const MaybeTensor& rows_inverse,
                                        const MaybeTensor& columns, const MaybeTensor& columns_inverse) {
  return {.type = type,
          .granularity = static_cast<Granularity>(granularity),
          .powers_of_two = powers_of_two,
          .scale = scale,
          .amax = amax,
          .is_wanted = is_wanted,
          .rows = rows,
          .rows_inverse = rows_inverse,
          .columns = columns,
          .columns_inverse = columns_inverse};
}

/// By operators that torch has on all devices.
void quantize_by_operators(const at::Tensor& values, const QuantizeRequest& request);

}  // namespace pianola::fp8
