#include <pianola/verify/compare.hpp>

#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace pianola::verification::compare_test {
namespace {

using ::testing::HasSubstr;

class CompareTest : public pianola::testing::DeviceTest {
 protected:
  static Comparison of(const at::Tensor& eager, const at::Tensor& graphed, const Tolerance& tolerance = {}) {
    const Pair pair{.name = "x", .role = "state", .eager = eager, .graphed = graphed};
    return compare({pair}, {{eager.scalar_type(), tolerance}}, 3);
  }
  static at::Tensor with(at::Tensor tensor, std::int64_t index, double value) {
    tensor = tensor.clone();
    tensor.flatten()[index].fill_(value);
    return tensor;
  }
};
PIANOLA_ON_EVERY_DEVICE(CompareTest);

constexpr at::ScalarType kAllDtypes[] = {
    at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,     at::kLong,          at::kInt,           at::kShort,
    at::kChar,   at::kByte,  at::kBool, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

TEST_P(CompareTest, OfEveryDtypeSeesTheOneBitThatDiffers) {
  for (const at::ScalarType dtype : kAllDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor one = at::zeros({3, 5}, at::kFloat).to(dtype).to(device());
    at::Tensor other = one.clone();
    EXPECT_TRUE(of(one, other).mismatches.empty());
    EXPECT_TRUE(of(one, other).same_bits);
    const at::Tensor bytes = at::zeros({one.numel() * static_cast<std::int64_t>(one.itemsize())}, at::kByte);
    bytes[7 * static_cast<std::int64_t>(one.itemsize())].fill_(1);
    other = bytes.view(dtype).view({3, 5}).to(device());
    const Comparison comparison = of(one, other);
    EXPECT_FALSE(comparison.same_bits);
    ASSERT_EQ(comparison.mismatches.size(), 1U);
    const TensorDifference& difference = comparison.mismatches[0].difference;
    EXPECT_EQ(difference.differing, 1U);
    EXPECT_EQ(difference.elements, 15U);
    EXPECT_EQ(difference.step, 3);
    EXPECT_THAT(difference.first, HasSubstr("[1, 2]: eager "));
    EXPECT_EQ(difference.max_ulps, one.is_floating_point() || one.is_complex() ? 1 : 0);
  }
}

TEST_P(CompareTest, TellsHowFarApartTheValuesAre) {
  const at::Tensor one = at::full({4, 4}, 2.0, device());
  const at::Tensor other = with(with(one, 6, 2.5), 9, 1.0);
  const TensorDifference difference = of(one, other).mismatches.at(0).difference;
  EXPECT_EQ(difference.shape, "Float [4, 4]");
  EXPECT_EQ(difference.differing, 2U);
  EXPECT_EQ(difference.max_absolute, 1);
  EXPECT_EQ(difference.max_relative, 0.5);
  EXPECT_EQ(difference.max_ulps, 1 << 23);
  EXPECT_EQ(difference.first, "[1, 2]: eager 2, graph 2.5");
}

TEST_P(CompareTest, ReadsTensorsInTheirLogicalOrder) {
  const at::Tensor one = at::arange(12, device()).view({3, 4});
  const at::Tensor other = one.t().contiguous().t();
  EXPECT_NE(one.strides(), other.strides());
  EXPECT_TRUE(of(one, other).mismatches.empty());
  other[2][1].fill_(7);
  EXPECT_EQ(of(one, other).mismatches.at(0).difference.first, "[2, 1]: eager 9, graph 7");
}

TEST_P(CompareTest, WithoutAToleranceAsksForEqualBits) {
  const at::Tensor zero = at::zeros({2}, device());
  EXPECT_EQ(of(zero, -zero).mismatches.at(0).difference.max_ulps, 0) << "-0 has other bits than +0";
  const at::Tensor nan = zero + std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(of(nan, nan.clone()).mismatches.empty());
}

TEST_P(CompareTest, WithAToleranceAcceptsWhatItSays) {
  const at::Tensor one = at::full({2}, 8.0, device());
  const auto differs = [&](double value, const Tolerance& tolerance) {
    const Comparison comparison = of(one, with(one, 1, value), tolerance);
    EXPECT_FALSE(comparison.same_bits);
    return !comparison.mismatches.empty();
  };
  EXPECT_FALSE(differs(8.25, {.absolute = 0.25}));
  EXPECT_TRUE(differs(8.2500095, {.absolute = 0.25}));
  EXPECT_FALSE(differs(9, {.relative = 0.125}));
  EXPECT_TRUE(differs(9.01, {.relative = 0.125}));
  EXPECT_FALSE(differs(8.000001, {.ulps = 1}));
  EXPECT_TRUE(differs(8.000002, {.ulps = 1}));
  EXPECT_TRUE(differs(std::nan(""), {.absolute = 1e30, .ulps = 1 << 30}));
  EXPECT_TRUE(differs(std::numeric_limits<double>::infinity(), {.absolute = 1e30}));
  EXPECT_TRUE(differs(std::numeric_limits<double>::infinity(), {.relative = 1e30}));
}

TEST_P(CompareTest, WithAToleranceTakesOneNaNForAnother) {
  const at::Tensor nan = at::full({2}, std::nan(""), device());
  EXPECT_TRUE(of(nan, -nan, {.absolute = 1e-6}).mismatches.empty());
  const at::Tensor infinite = at::full({2}, std::numeric_limits<double>::infinity(), device());
  EXPECT_TRUE(of(infinite, infinite.clone(), {.absolute = 1e-6}).mismatches.empty());
  EXPECT_EQ(of(infinite, -infinite, {.absolute = 1e-6}).mismatches.at(0).difference.differing, 2U);
}

TEST_P(CompareTest, OfNaNAgainstANumberIsTheLargestDistance) {
  const at::Tensor one = at::ones({2}, device());
  const Mismatch mismatch = of(one, with(one, 0, std::nan(""))).mismatches.at(0);
  EXPECT_EQ(mismatch.difference.max_ulps, std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(std::isinf(mismatch.difference.max_absolute));
  EXPECT_TRUE(mismatch.graph_has_nan);
  EXPECT_FALSE(of(with(one, 0, std::nan("")), one).mismatches.at(0).graph_has_nan);
}

TEST_P(CompareTest, OfOtherShapesOrDtypesSaysWhich) {
  const at::Tensor one = at::ones({2, 3}, device());
  EXPECT_EQ(of(one, at::ones({3, 2}, device())).mismatches.at(0).difference.note,
            "eager Float [2, 3], graph Float [3, 2]");
  EXPECT_EQ(of(one, one.to(at::kDouble)).mismatches.at(0).difference.note, "eager Float [2, 3], graph Double [2, 3]");
}

TEST_P(CompareTest, TakesZerosOfTheGraphForNoGradientOfEager) {
  const at::Tensor zero = at::zeros({2}, device()), one = at::ones({2}, device());
  const auto notes = [](const at::Tensor& eager, const at::Tensor& graphed, const char* role) {
    std::vector<std::string> all;
    for (const Mismatch& mismatch :
         compare({{.name = "x", .role = role, .eager = eager, .graphed = graphed}}, {}, 1).mismatches) {
      all.push_back(mismatch.difference.note);
    }
    return all;
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(notes({}, zero, "gradient"), Notes{});
  EXPECT_EQ(notes({}, {}, "gradient"), Notes{});
  EXPECT_EQ(notes({}, one, "gradient"), Notes{"undefined in eager"});
  EXPECT_EQ(notes(zero, {}, "gradient"), Notes{"undefined in graph"});
  EXPECT_EQ(notes({}, zero, "output"), Notes{"undefined in eager"});
}

TEST_P(CompareTest, KeepsApartWhatDiffersAmongMany) {
  std::vector<Pair> pairs;
  for (int i = 0; i < 50; ++i) {
    const at::Tensor one = randn({i % 7, 3}, static_cast<std::uint64_t>(i + 1));
    pairs.push_back({.name = std::to_string(i), .role = "state", .eager = one, .graphed = one.clone()});
  }
  pairs[31].graphed.add_(1);
  pairs[8].graphed.add_(1);
  const Comparison comparison = compare(pairs, {}, 1);
  ASSERT_EQ(comparison.mismatches.size(), 2U);
  EXPECT_EQ(comparison.mismatches[0].pair, 8U);
  EXPECT_EQ(comparison.mismatches[1].pair, 31U);
  EXPECT_EQ(comparison.mismatches[1].difference.name, "31");
}

TEST_P(CompareTest, FindsTheFirstElementBehindAMillionEqualOnes) {
  const at::Tensor one = at::zeros({5'000'000}, device());
  const at::Tensor other = with(with(one, 4'999'990, 1), 4'300'000, 2);
  const TensorDifference difference = of(one, other).mismatches.at(0).difference;
  EXPECT_EQ(difference.first, "[4300000]: eager 0, graph 2");
  EXPECT_EQ(difference.differing, 2U);
  EXPECT_EQ(difference.max_absolute, 2);
}

}  // namespace
}  // namespace pianola::verification::compare_test
