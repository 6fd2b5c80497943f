#include <pianola/verify/ulps.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace pianola::verification::ulps_test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

template <typename T>
at::Tensor one_number(T value) {
  at::Tensor tensor = at::empty({1}, c10::CppTypeToScalarType<T>::value);
  *tensor.mutable_data_ptr<T>() = value;
  return tensor;
}

template <typename T>
std::int64_t ulps(T one, T other) {
  const at::Tensor distance = ulps_between(one_number(one), one_number(other));
  return distance.item<std::int64_t>();
}

template <typename T>
class UlpsTest : public ::testing::Test {};
using Wide = ::testing::Types<double, float>;
TYPED_TEST_SUITE(UlpsTest, Wide);

TYPED_TEST(UlpsTest, CountsTheStepsOfNextafter) {
  using T = TypeParam;
  const std::vector<T> starts = {0,
                                 1,
                                 -1,
                                 T(0.1),
                                 T(-3e20),
                                 std::numeric_limits<T>::denorm_min(),
                                 -std::numeric_limits<T>::denorm_min(),
                                 std::numeric_limits<T>::min(),
                                 T(65504),
                                 std::numeric_limits<T>::max() / 2};
  for (const T start : starts) {
    T up = start, down = start;
    for (std::int64_t steps = 1; steps <= 40; ++steps) {
      up = std::nextafter(up, std::numeric_limits<T>::infinity());
      down = std::nextafter(down, -std::numeric_limits<T>::infinity());
      EXPECT_EQ(ulps(start, up), steps) << start;
      EXPECT_EQ(ulps(up, start), steps) << start;
      EXPECT_EQ(ulps(start, down), steps) << start;
      EXPECT_EQ(ulps(down, up), 2 * steps) << start;
    }
  }
}

TYPED_TEST(UlpsTest, KnowsTheSpecialValues) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(ulps(T(0), -T(0)), 0);
  EXPECT_EQ(ulps(Limits::max(), Limits::infinity()), 1);
  EXPECT_EQ(ulps(Limits::quiet_NaN(), Limits::quiet_NaN()), 0);
  EXPECT_EQ(ulps(Limits::quiet_NaN(), -Limits::quiet_NaN()), 0);
  EXPECT_EQ(ulps(Limits::quiet_NaN(), T(1)), kMost);
  EXPECT_EQ(ulps(T(1), Limits::quiet_NaN()), kMost);
}

TEST(Ulps, BetweenTheEndsOfADoubleDoNotOverflow) {
  EXPECT_EQ(ulps(std::numeric_limits<double>::max(), -std::numeric_limits<double>::max()), kMost);
  EXPECT_EQ(ulps(-3.0, 3.0), kMost);
  EXPECT_EQ(ulps(-std::numeric_limits<double>::denorm_min(), 1.0), std::bit_cast<std::int64_t>(1.0) + 1);
}

// Each 16-bit number and its neighbour in bits.
template <typename T>
void expect_one_step_between_neighbours(std::uint16_t infinity) {
  for (const std::uint16_t sign : {0, 0x8000}) {
    for (std::uint16_t bits = 0; bits < infinity; ++bits) {
      const T one(static_cast<unsigned short>(sign | bits), T::from_bits());
      const T next(static_cast<unsigned short>(sign | (bits + 1)), T::from_bits());
      if (bits % 97 != 0 && bits + 1 != infinity) continue;
      ASSERT_EQ(ulps(one, next), 1) << static_cast<float>(one);
    }
  }
  EXPECT_EQ(ulps(T(1.0F), T(-1.0F)), 2 * static_cast<std::int64_t>(T(1.0F).x));
}

TEST(Ulps, OfHalfAndBFloat16AreTheirOwn) {
  expect_one_step_between_neighbours<c10::Half>(0x7C00);
  expect_one_step_between_neighbours<c10::BFloat16>(0x7F80);
}

TEST(Ulps, OfTheEightBitFormatsAreTheirOwn) {
  const at::Tensor one = at::full({1}, 1.0, at::kFloat);
  for (const auto dtype : {at::kFloat8_e5m2, at::kFloat8_e4m3fn}) {
    const double step = dtype == at::kFloat8_e5m2 ? 0.25 : 0.125;
    EXPECT_EQ(ulps_between(one.to(dtype), (one + step).to(dtype)).item<std::int64_t>(), 1);
    EXPECT_EQ(ulps_between(one.to(dtype), (one * std::nan("")).to(dtype)).item<std::int64_t>(), kMost);
  }
}

}  // namespace
}  // namespace pianola::verification::ulps_test
