#include <pianola/verify/ulps.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/verify/bits.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <cstdint>
#include <limits>

namespace pianola::verification {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// These formats keep sign and magnitude apart: counted from zero, the bits without the sign number the magnitudes.
at::Tensor place_on_number_line(const at::Tensor& values) {
  const at::Tensor bits = bits_of(values);
  const std::int64_t without_sign = kMost >> (64 - 8 * values.itemsize());
  const at::Tensor magnitude = bits.to(at::kLong).bitwise_and(at::Scalar(without_sign));
  return at::where(bits.lt(0), magnitude.neg(), magnitude);
}

}  // namespace

at::Tensor ulps_between(const at::Tensor& one, const at::Tensor& other) {
  const trace::QuietScope quiet;
  const at::Tensor left = place_on_number_line(one);
  const at::Tensor right = place_on_number_line(other);
  const at::Tensor most = at::scalar_tensor(kMost, left.options());
  // The count overflows only for doubles of opposite signs; it then comes out negative.
  const at::Tensor distance = at::where(left.gt(right), left - right, right - left);
  const at::Tensor fits = at::where(distance.lt(0), most, distance);
  const at::Tensor left_is_nan = at::isnan(one.to(at::kFloat));  // the small formats compare nothing themselves
  const at::Tensor right_is_nan = at::isnan(other.to(at::kFloat));
  return at::where(left_is_nan.logical_and(right_is_nan), at::scalar_tensor(0, left.options()),
                   at::where(left_is_nan.logical_or(right_is_nan), most, fits));
}

}  // namespace pianola::verification
