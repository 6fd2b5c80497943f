#include <pianola/verify/closer_look.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/verify/bits.hpp>
#include <pianola/verify/ulps.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace pianola::verification {
namespace {

// Elements looked at together: each takes some hundred bytes on the way.
constexpr std::int64_t kElementsAtOnce = 1 << 22;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_set(const Tolerance& tolerance) {
  return tolerance.absolute > 0 || tolerance.relative > 0 || tolerance.ulps > 0;
}

// Elements in a row, a complex number as a row of two; integers that are no numbers (of quantized tensors) as bits.
at::Tensor in_rows(const at::Tensor& tensor) {
  at::Tensor plain = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  if (plain.is_quantized()) plain = bits_of(plain);
  plain = plain.resolve_conj().resolve_neg();
  return plain.is_complex() ? at::view_as_real(plain).reshape({-1, 2}) : plain.reshape({-1, 1});
}

bool has_ulps(const at::Tensor& tensor) {
  return tensor.is_floating_point() && tensor.scalar_type() != at::kFloat8_e8m0fnu;
}

// The largest value where `mask` is set; 0 where it is nowhere.
template <typename T>
T largest(const at::Tensor& values, const at::Tensor& mask) {
  return at::where(mask, values, at::scalar_tensor(0, values.options())).max().item<T>();
}

// One block of rows. Two infinities of one sign are equal: their difference is no number.
class Block {
 public:
  Block(const at::Tensor& one, const at::Tensor& other, const Tolerance& tolerance)
      : one_(one.to(at::kDouble)), other_(other.to(at::kDouble)) {
    one_is_nan_ = at::isnan(one_);
    other_is_nan_ = at::isnan(other_);
    const at::Tensor distance = (other_ - one_).abs();
    const at::Tensor equal = one_.eq(other_).logical_or(one_is_nan_.logical_and(other_is_nan_));
    const at::Tensor number =
        at::where(at::isfinite(distance), distance, at::scalar_tensor(kInfinity, distance.options()));
    absolute_ = at::where(equal, at::scalar_tensor(0, distance.options()), number);
    if (has_ulps(one)) ulps_ = ulps_between(one, other);
    differ_ = at::ne(bits_of(one), bits_of(other));
    if (is_set(tolerance)) differ_ = differ_.logical_and(accepted(tolerance, equal).logical_not());
  }

  // Per row.
  [[nodiscard]] at::Tensor differing_rows() const { return differ_.any(1); }

  void add_to(CloserLook& look) const {
    look.max_absolute = std::max(look.max_absolute, largest<double>(absolute_, differ_));
    const at::Tensor of_numbers = differ_.logical_and(one_.ne(0)).logical_and(at::isfinite(one_));
    look.max_relative = std::max(look.max_relative, largest<double>(absolute_ / one_.abs(), of_numbers));
    if (ulps_.defined()) look.max_ulps = std::max(look.max_ulps, largest<std::int64_t>(ulps_, differ_));
    look.only_other_has_nan =
        look.only_other_has_nan || other_is_nan_.logical_and(one_is_nan_.logical_not()).any().item<bool>();
  }

 private:
  [[nodiscard]] at::Tensor accepted(const Tolerance& tolerance, const at::Tensor& equal) const {
    at::Tensor near = equal.logical_or(
        absolute_.le(one_.abs() * tolerance.relative + tolerance.absolute).logical_and(at::isfinite(absolute_)));
    return ulps_.defined() ? near.logical_or(ulps_.le(at::Scalar(tolerance.ulps))) : near;
  }

  at::Tensor one_, other_, one_is_nan_, other_is_nan_, absolute_, ulps_, differ_;
};

std::string number_text(const at::Tensor& number) {
  if (number.scalar_type() == at::kDouble) return fmt::format("{}", number.item<double>());
  if (number.is_floating_point()) return fmt::format("{}", number.to(at::kFloat).item<float>());
  if (number.scalar_type() == at::kBool) return number.item<bool>() ? "true" : "false";
  return fmt::format("{}", number.to(at::kLong).item<std::int64_t>());
}

std::string row_text(const at::Tensor& row) {
  if (row.numel() == 1) return number_text(row[0]);
  return fmt::format("({}, {})", number_text(row[0]), number_text(row[1]));
}

// "[3, 7]: ", and nothing for a tensor without dimensions.
std::string index_text(std::int64_t flat, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    index[dim] = flat % sizes[dim];
    flat /= sizes[dim];
  }
  return index.empty() ? "" : fmt::format("[{}]: ", fmt::join(index, ", "));
}

}  // namespace

CloserLook look_closer(const at::Tensor& one, const at::Tensor& other, const Tolerance& tolerance,
                       const SideNames& names) {
  const trace::QuietScope quiet;
  const at::Tensor left = in_rows(one);
  const at::Tensor right = in_rows(other).to(left.device());
  CloserLook look;
  for (std::int64_t begin = 0; begin < left.size(0); begin += kElementsAtOnce) {
    const std::int64_t count = std::min(kElementsAtOnce, left.size(0) - begin);
    const Block block(left.narrow(0, begin, count), right.narrow(0, begin, count), tolerance);
    const at::Tensor rows = block.differing_rows();
    const auto differing = static_cast<std::size_t>(rows.sum().item<std::int64_t>());
    if (differing == 0) continue;
    if (look.differing == 0) {
      const std::int64_t row = begin + rows.to(at::kByte).argmax().item<std::int64_t>();
      look.first = fmt::format("{}{} {}, {} {}", index_text(row, one.sizes()), names.one, row_text(left[row]),
                               names.other, row_text(right[row]));
    }
    look.differing += differing;
    block.add_to(look);
  }
  return look;
}

}  // namespace pianola::verification
