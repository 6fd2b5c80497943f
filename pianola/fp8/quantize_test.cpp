#include <pianola/fp8/product.hpp>
#include <pianola/fp8/quantize.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace pianola::fp8::quantize_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::same;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class QuantizeTest : public testing::DeviceTest {
 protected:
  // Numbers over many powers of two, so that some end up subnormal and some at the largest.
  static at::Tensor matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed = 1) {
    return randn({rows, columns}, seed) * at::exp2(randn({rows, columns}, seed + 100) * 4);
  }
  static std::vector<float> floats(const at::Tensor& tensor) {
    const at::Tensor plain = tensor.cpu().to(at::kFloat).contiguous();
    return {plain.const_data_ptr<float>(), plain.const_data_ptr<float>() + plain.numel()};
  }
  static testing::NamedTensors bytes(const Factor& factor) {
    return {{"bytes", factor.data.view(at::kByte)}, {"inverse", factor.inverse}};
  }
};
PIANOLA_ON_EVERY_DEVICE(QuantizeTest);

// All numbers of a type, from its definition: sign, exponent with its bias, mantissa.
std::vector<double> numbers_of(c10::ScalarType type) {
  const bool is_e4m3 = type == c10::kFloat8_e4m3fn;
  const int mantissa_bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15, exponents = is_e4m3 ? 16 : 31;
  std::vector<double> numbers;
  for (int exponent = 0; exponent < exponents; ++exponent) {
    for (int mantissa = 0; mantissa < 1 << mantissa_bits; ++mantissa) {
      if (is_e4m3 && exponent == 15 && mantissa == 7) continue;  // NaN
      const double fraction = std::ldexp(mantissa, -mantissa_bits) + (exponent == 0 ? 0 : 1);
      numbers.push_back(std::ldexp(fraction, std::max(exponent, 1) - bias));
    }
  }
  return numbers;  // not negative, in ascending order
}

// The nearest; of two as near the one whose mantissa is even, which are those of even places.
double rounded(double value, const std::vector<double>& numbers) {
  const double magnitude = std::min(std::abs(value), numbers.back());
  std::size_t best = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const double now = std::abs(numbers[i] - magnitude), before = std::abs(numbers[best] - magnitude);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], value);
}

TEST_P(QuantizeTest, TheScaleIsTheLargestNumberOverTheAmax) {
  const at::Tensor amax = torch::tensor({448.0F, 1.0F, 3.0F, 0.0F, kInf, kNan, 1e-40F, 57344.0F}).to(device());
  const std::vector<float> expected = {
      1.0F, 448.0F, 448.0F / 3.0F, 1.0F, 1.0F, 1.0F, std::numeric_limits<float>::max(), 448.0F / 57344.0F};
  EXPECT_EQ(floats(scale_of(amax, c10::kFloat8_e4m3fn, /*powers_of_two=*/false)), expected);
  EXPECT_EQ(floats(scale_of(amax, c10::kFloat8_e4m3fn, /*powers_of_two=*/true)),
            (std::vector<float>{1.0F, 256.0F, 128.0F, 1.0F, 1.0F, 1.0F, 0x1p127F, 0x1p-7F}));
  EXPECT_EQ(floats(scale_of(amax, c10::kFloat8_e5m2, /*powers_of_two=*/false))[2], 57344.0F / 3.0F);
}

// Against the formula in float64, and numbers from the definition of the types.
TEST_P(QuantizeTest, BytesAreTheNearestNumbers) {
  for (const c10::ScalarType type : {c10::kFloat8_e4m3fn, c10::kFloat8_e5m2}) {
    const std::vector<double> numbers = numbers_of(type);
    ASSERT_EQ(numbers.back(), largest_of(type));
    const at::Tensor values = matrix(16, 32);
    const Factor factor = quantize(values, {.type = type}).rows;
    const std::vector<float> given = floats(values), made = floats(factor.data), inverse = floats(factor.inverse);
    float amax = 0;
    for (const float one : given) amax = std::max(amax, std::abs(one));
    const float scale = static_cast<float>(largest_of(type)) / amax;
    EXPECT_EQ(inverse, (std::vector<float>{1.0F / scale}));
    for (std::size_t i = 0; i < given.size(); ++i) {
      ASSERT_EQ(made[i], rounded(static_cast<double>(given[i] * scale), numbers)) << given[i];
    }
  }
}

TEST_P(QuantizeTest, WhatIsNoNumberOrInfiniteStaysSo) {
  at::Tensor values = matrix(16, 16);
  values[0][0] = kInf;
  values[0][1] = -kInf;
  values[0][2] = kNan;
  values[0][3] = 3e38;
  QuantizeOptions given{.granularity = Granularity::given, .scale = at::full({}, 2.0, values.options())};
  std::vector<float> made = floats(quantize(values, given).rows.data);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(made[i])) << "e4m3 has no infinity";
  EXPECT_EQ(made[3], 448.0F);
  given.type = c10::kFloat8_e5m2;
  made = floats(quantize(values, given).rows.data);
  EXPECT_EQ(made[0], kInf);
  EXPECT_EQ(made[1], -kInf);
  EXPECT_TRUE(std::isnan(made[2]));
  EXPECT_EQ(made[3], 57344.0F);
  EXPECT_EQ(floats(quantize(values, {}).rows.inverse), std::vector<float>{1.0F}) << "of an infinite amax";
  values[0][0] = values[0][1] = values[0][3] = 3e4;
  EXPECT_EQ(floats(quantize(values, {}).rows.inverse), std::vector<float>{1.0F / (448.0F / 3e4F)}) << "NaN is left out";
}

TEST_P(QuantizeTest, ScalesOfRowsAndBlocksAreOfThatAlone) {
  const at::Tensor values = matrix(256, 384);
  const auto expect_part = [&](const Quantized& whole, std::int64_t rows, std::int64_t columns,
                               const std::string& what) {
    for (std::int64_t row : {std::int64_t{0}, 256 / rows - 1}) {
      for (std::int64_t column : {std::int64_t{0}, 384 / columns - 1}) {
        const at::Tensor part =
            values.slice(0, row * rows, (row + 1) * rows).slice(1, column * columns, (column + 1) * columns);
        const Factor alone = quantize(part.contiguous(), {.powers_of_two = what != "rows"}).rows;
        EXPECT_TRUE(same(whole.rows.data.slice(0, row * rows, (row + 1) * rows)
                             .slice(1, column * columns, (column + 1) * columns)
                             .contiguous()
                             .view(at::kByte),
                         alone.data.view(at::kByte)))
            << what;
        EXPECT_TRUE(same(whole.rows.inverse[row][column], alone.inverse)) << what;
      }
    }
  };
  expect_part(quantize(values, {.granularity = Granularity::row}), 1, 384, "rows");
  expect_part(quantize(values, {.granularity = Granularity::block_1x128, .powers_of_two = true}), 1, 128, "lengths");
  expect_part(quantize(values, {.granularity = Granularity::block_128x128, .powers_of_two = true}), 128, 128,
              "squares");
}

TEST_P(QuantizeTest, ColumnsAreWhatRowsOfTheTransposedAre) {
  const at::Tensor values = matrix(128, 256);
  for (const Granularity granularity :
       {Granularity::whole, Granularity::row, Granularity::block_1x128, Granularity::block_128x128}) {
    const Quantized both = quantize(values, {.granularity = granularity, .columns = true});
    const Factor transposed = quantize(values.t().contiguous(), {.granularity = granularity}).rows;
    testing::expect_same(bytes(both.columns), bytes(transposed));
    const at::Tensor alike = randn({128, 256}),
                     error = dequantize(quantize(alike, {.granularity = granularity}).rows) - alike;
    EXPECT_LE(error.norm().item<double>(), 0.04 * alike.norm().item<double>());
  }
}

TEST_P(QuantizeTest, AnAmaxIsNotedWhereItIsLarger) {
  const at::Tensor noted = at::zeros({}, at::TensorOptions(device()));
  QuantizeOptions options;
  options.amax = noted;
  for (const double amax : {3.0, 2.0, 5.0}) {
    (void)quantize(at::full({16, 16}, -amax, noted.options()), options);
    EXPECT_EQ(noted.item<float>(), std::max<float>(static_cast<float>(amax), 3.0F));
  }
}

TEST_P(QuantizeTest, IntoOtherMemoryOnlyWhereTheDeviceSaysSo) {
  const at::Tensor first = matrix(32, 16, 1), second = matrix(32, 16, 2),
                   noted = at::zeros({}, at::TensorOptions(device()));
  QuantizeOptions options{.columns = true};
  const Quantized kept = quantize(first, options);
  const auto before = testing::clone_all(bytes(kept.columns));
  options.amax = noted;
  const at::Tensor is_wanted = at::zeros({}, noted.options().dtype(at::kBool));
  quantize_into(kept, second, options, is_wanted);
  testing::expect_same(bytes(kept.columns), before);
  EXPECT_EQ(noted.item<float>(), 0.0F);
  is_wanted.fill_(true);
  quantize_into(kept, second, options, is_wanted);
  const Quantized anew = quantize(second, {.columns = true});
  testing::expect_same(bytes(kept.rows), bytes(anew.rows));
  testing::expect_same(bytes(kept.columns), bytes(anew.columns));
  EXPECT_TRUE(same(noted, second.abs().max()));
}

// The CPU's is a float32 product of what the bytes stand for; a GPU's sums otherwise.
TEST_P(QuantizeTest, ProductsAreThoseOfWhatTheBytesStandFor) {
  struct Case {
    Granularity a, b;
    std::int64_t rows, sum;
  };
  using enum Granularity;
  for (const Case& of : {Case{whole, whole, 64, 128}, Case{row, row, 64, 128},
                         Case{block_1x128, block_128x128, 64, 128}, Case{block_1x128, block_128x128, 64, 512},
                         Case{block_1x128, block_128x128, 64, 640}, Case{block_1x128, block_128x128, 7, 256},
                         Case{block_1x128, block_1x128, 128, 384}, Case{whole, whole, 7, 64}}) {
    const Factor a = quantize(matrix(of.rows, of.sum, 1), {.granularity = of.a}).rows;
    const Factor b = quantize(matrix(256, of.sum, 2), {.granularity = of.b}).rows;
    const at::Tensor left = dequantize(a).to(at::kDouble), right = dequantize(b).to(at::kDouble);
    const auto expect_near = [&](const at::Tensor& product, const at::Tensor& expected, double within) {
      const at::Tensor error = (product.to(at::kDouble) - expected).abs();
      EXPECT_LE((error / left.abs().mm(right.abs().t())).max().item<double>(), within)
          << "[" << of.rows << ", " << of.sum << "], scales " << static_cast<int>(of.b);
    };
    expect_near(scaled_product(a, b, at::kFloat, false), left.mm(right.t()), 0x1p-7);
    const at::Tensor bias = randn({256}, 3).to(at::kBFloat16);
    const at::Tensor strided = at::stack({bias, bias.neg()}, 1).select(1, 0),
                     moved = at::cat({bias.slice(0, 0, 1), bias}).slice(0, 1);
    for (const at::Tensor& one : {bias, strided, moved})
      expect_near(scaled_product(a, b, at::kBFloat16, false, one), left.mm(right.t()) + bias.to(at::kDouble), 0x1p-6);
  }
}

TEST_P(QuantizeTest, WhatCannotBeMultipliedIsRefused) {
  const auto factor = [](std::int64_t rows, std::int64_t columns, c10::ScalarType type = c10::kFloat8_e4m3fn) {
    return quantize(matrix(rows, columns), {.type = type}).rows;
  };
  const auto said = [](const Factor& a, const Factor& b) {
    return testing::refusal<UsageError>("a product", [&] { (void)scaled_product(a, b, at::kFloat, false); });
  };
  EXPECT_THAT(said(factor(16, 24), factor(16, 24)),
              AllOf(HasSubstr("multiples of 16"), HasSubstr("fix:   pad to a multiple of 16")));
  EXPECT_THAT(said(factor(16, 32), factor(24, 32)), HasSubstr("of [16, 32] and [32, 24]"));
  EXPECT_THAT(said(factor(16, 32), factor(16, 16)), HasSubstr("sums along 32 columns on one side and 16 on the other"));
  EXPECT_THAT(said(factor(16, 32, c10::kFloat8_e5m2), factor(16, 32, c10::kFloat8_e5m2)),
              HasSubstr("two e5m2 matrices"));
  EXPECT_THAT(testing::refusal<UsageError>(
                  "blocks", [&] { (void)quantize(matrix(16, 100), {.granularity = Granularity::block_1x128}); }),
              HasSubstr("blocks of 128 do not fit into a matrix of [16, 100]"));
  EXPECT_THAT(testing::refusal<UsageError>("no matrix", [&] { (void)quantize(randn({16}), {}); }),
              HasSubstr("must be a matrix of a floating type, got Float [16]"));
  EXPECT_THAT(testing::refusal<UsageError>("nothing", [&] { (void)quantize(matrix(0, 16), {}); }),
              HasSubstr("what is quantised has no elements: [0, 16]"));
  EXPECT_THAT(testing::refusal<UsageError>("a type", [] { (void)largest_of(at::kHalf); }),
              HasSubstr("Half is no type of 8 bits"));
}

}  // namespace
}  // namespace pianola::fp8::quantize_test
