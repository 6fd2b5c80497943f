#include <pianola/fp8/cuda/quantize_kernels.hpp>

#include <pianola/fp8/quantize_operation.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace pianola::fp8::quantize_kernels_test {
namespace {

using ::testing::StartsWith;

constexpr Granularity kAll[] = {Granularity::given, Granularity::whole, Granularity::row, Granularity::block_1x128,
                                Granularity::block_128x128};

TEST(QuantizeKernels, CompileForEveryDeviceThatHasTheirTypes) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  KernelKind kind;
  for (const Granularity granularity : kAll) {
    kind.granularity = granularity;
    EXPECT_THAT(compile(source_of(kind), "sm_90").binary, StartsWith("\x7f"
                                                                     "ELF"));
  }
  kind.type = c10::kFloat8_e5m2;
  for (const c10::ScalarType element : {at::kHalf, at::kFloat}) {
    kind.element = element;
    EXPECT_THAT(compile(source_of(kind), "sm_90").binary, StartsWith("\x7f"
                                                                     "ELF"));
  }
  kind.notes_amaxes = true;
  for (const Granularity granularity : {Granularity::whole, Granularity::row}) {
    kind.granularity = granularity;
    EXPECT_THAT(compile(source_of(kind), "sm_89").binary, StartsWith("\x7f"
                                                                     "ELF"));
  }
}

// Bytes and scales, against what the CPU makes of the same values.
class QuantizeKernelsTest : public testing::DeviceTest {
 protected:
  struct Case {
    std::int64_t rows, columns;
    bool is_strange = false;  // has what is infinite, and what is no number
  };

  static at::Tensor matrix(const Case& of, c10::ScalarType element) {
    at::Tensor values = (randn({of.rows, of.columns}, 1) * at::exp2(randn({of.rows, of.columns}, 2) * 3)).to(element);
    if (!of.is_strange) return values;
    const float infinity = std::numeric_limits<float>::infinity();
    values[0][0] = infinity;
    values[1][of.columns - 1] = -infinity;
    values[of.rows - 1][2] = std::numeric_limits<float>::quiet_NaN();
    values[2][3] = -std::numeric_limits<float>::quiet_NaN();
    values[3].zero_();
    return values;
  }

  static bool fits(Granularity granularity, const Case& of) {
    if (granularity != Granularity::block_1x128 && granularity != Granularity::block_128x128) return true;
    return of.rows % 128 == 0 && of.columns % 128 == 0;
  }

  static void expect_same(const Factor& here, const Factor& there, const std::string& what) {
    EXPECT_TRUE(testing::same(here.data.view(at::kByte).cpu(), there.data.view(at::kByte))) << what;
    EXPECT_TRUE(testing::same(here.inverse.cpu(), there.inverse)) << what;
  }

  static void expect_as_on_the_cpu(const Case& of, c10::ScalarType element, QuantizeOptions options) {
    const at::Tensor values = matrix(of, element), there = values.cpu();
    QuantizeOptions on_cpu = options;
    if (options.granularity == Granularity::given) {
      options.scale = at::full({}, 3.7, values.options().dtype(at::kFloat));
      options.amax = at::zeros({}, options.scale.options());
      on_cpu.scale = options.scale.cpu();
      on_cpu.amax = options.amax.cpu();
    }
    const Quantized made = quantize(values, options), expected = quantize(there, on_cpu);
    const std::string what = std::string(c10::toString(element)) + " to " + c10::toString(options.type) + ", scales " +
                             std::to_string(static_cast<int>(options.granularity)) + ", [" + std::to_string(of.rows) +
                             ", " + std::to_string(of.columns) + "]";
    if (options.rows) expect_same(made.rows, expected.rows, what + " as it lies");
    if (options.columns) expect_same(made.columns, expected.columns, what + " transposed");
    if (options.amax.defined()) {
      EXPECT_TRUE(testing::same(options.amax.cpu(), on_cpu.amax)) << what;
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(QuantizeKernelsTest);

TEST_P(QuantizeKernelsTest, MakeTheBytesThatTheCpuMakes) {
  for (const c10::ScalarType element : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const c10::ScalarType type : {c10::kFloat8_e4m3fn, c10::kFloat8_e5m2}) {
      for (const Granularity granularity : kAll) {
        for (const Case& of : {Case{256, 384}, Case{256, 128, true}, Case{48, 144}, Case{37, 211, true}, Case{4, 8}}) {
          if (fits(granularity, of))
            expect_as_on_the_cpu(of, element, {.type = type, .granularity = granularity, .columns = true});
        }
      }
    }
  }
}

TEST_P(QuantizeKernelsTest, MakeOneOfTheTwoAlone) {
  for (const Granularity granularity : kAll) {
    for (const bool is_transposed : {false, true}) {
      expect_as_on_the_cpu(
          {256, 256}, at::kBFloat16,
          {.granularity = granularity, .powers_of_two = true, .rows = !is_transposed, .columns = is_transposed});
    }
  }
}

TEST_P(QuantizeKernelsTest, TakeMatricesThatDoNotLieRowByRow) {
  const at::Tensor values = matrix({64, 96}, at::kBFloat16);
  for (const at::Tensor& view :
       {values.t(), values.slice(1, 3, 67), values.select(0, 1).unsqueeze(0).expand({16, 96})}) {
    const Quantized made = quantize(view, {.columns = true}),
                    expected = quantize(view.contiguous().cpu(), {.columns = true});
    expect_same(made.rows, expected.rows, "as it lies");
    expect_same(made.columns, expected.columns, "transposed");
  }
}

TEST_P(QuantizeKernelsTest, WriteNothingWhereTheDeviceSaysSo) {
  for (const Granularity granularity : {Granularity::whole, Granularity::row, Granularity::block_128x128}) {
    const QuantizeOptions options{.granularity = granularity, .columns = true};
    const at::Tensor first = matrix({128, 256}, at::kBFloat16), second = first * 2.5;
    const Quantized kept = quantize(first, options);
    const at::Tensor is_wanted = at::zeros({}, first.options().dtype(at::kBool));
    quantize_into(kept, second, options, is_wanted);
    expect_same(kept.rows, quantize(first.cpu(), options).rows, "not wanted");
    is_wanted.fill_(true);
    quantize_into(kept, second, options, is_wanted);
    expect_same(kept.columns, quantize(second.cpu(), options).columns, "wanted");
  }
}

}  // namespace
}  // namespace pianola::fp8::quantize_kernels_test
