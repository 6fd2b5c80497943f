#include <pianola/fp8/product.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#endif

#include <fmt/format.h>

namespace pianola::fp8 {
namespace {

constexpr std::int64_t kMultiple = 16;

void check_factors(const Factor& a, const Factor& b) {
  const std::int64_t sum = a.data.size(1), columns = b.data.size(0);
  if (sum != b.data.size(1)) {
    throw UsageError({.what = fmt::format("a product of 8 bits sums along {} columns on one side and {} on the other",
                                          sum, b.data.size(1))});
  }
  if (sum % kMultiple != 0 || columns % kMultiple != 0) {
    throw UsageError(
        {.what =
             fmt::format("a product of 8 bits of [{}, {}] and [{}, {}]: GPUs want multiples of {} where it sums, and "
                         "in the width of the result",
                         a.data.size(0), sum, sum, columns, kMultiple),
         .fix = "pad to a multiple of 16: the features of a layer, and in training the tokens of a batch"});
  }
  if (a.data.scalar_type() == c10::kFloat8_e5m2 && b.data.scalar_type() == c10::kFloat8_e5m2) {
    throw UsageError({.what = "a product of 8 bits of two e5m2 matrices", .fix = "one of them has to be e4m3"});
  }
}

#if PIANOLA_WITH_CUDA
// cuBLAS: rows of scales of 128 x 128 begin at multiples of these, and there are so many rows of 1 x 128.
constexpr std::int64_t kScales = 4;

bool is_cut(const Factor& factor) {
  return factor.granularity == Granularity::block_1x128 || factor.granularity == Granularity::block_128x128;
}

std::int64_t missing(std::int64_t count) { return (kScales - count % kScales) % kScales; }

// As _scaled_mm wants the scales of a first factor: those of 1 x 128 lie column by column, and rows of 128 x 128 begin at multiples of 4,
// while their strides must say that they lie densely.
at::Tensor scales_of(const Factor& factor) {
  const at::Tensor& inverse = factor.inverse;
  if (factor.granularity == Granularity::block_1x128) return inverse.t().contiguous().t();
  if (factor.granularity != Granularity::block_128x128 || missing(inverse.size(1)) == 0) return inverse;
  return at::constant_pad_nd(inverse, {0, missing(inverse.size(1))}).as_strided(inverse.sizes(), inverse.strides());
}

// _scaled_mm reads a bias as if it lay so.
bool lies_as_products_want(const at::Tensor& bias) {
  return bias.is_contiguous() && reinterpret_cast<std::uintptr_t>(bias.const_data_ptr()) % 16 == 0;
}

// With as many rows as products of blocks want.
Factor padded(const Factor& factor, std::int64_t rows) {
  Factor result = factor;
  result.data = at::constant_pad_nd(factor.data.view(at::kByte), {0, 0, 0, rows}).view(factor.data.scalar_type());
  result.inverse = at::constant_pad_nd(factor.inverse, {0, 0, 0, rows});
  return result;
}

at::Tensor product_on_cuda(const Factor& a, const Factor& b, c10::ScalarType type, bool fast_accumulation,
                           const std::optional<at::Tensor>& bias) {
  if (a.granularity == Granularity::block_1x128 && missing(a.data.size(0)) != 0) {
    const at::Tensor all = product_on_cuda(padded(a, missing(a.data.size(0))), b, type, fast_accumulation, bias);
    return all.slice(0, 0, a.data.size(0)).contiguous();
  }
  // Products by rows give bfloat16 alone. A bias of the result's type is added inside, where the type is one of 16 bits.
  const c10::ScalarType made = a.granularity == Granularity::row ? c10::kBFloat16 : type;
  const bool adds_bias =
      bias && bias->scalar_type() == made && made != c10::kFloat && !is_cut(a) && lies_as_products_want(*bias);
  at::Tensor result =
      at::_scaled_mm(a.data, b.data.t(), scales_of(a), b.inverse.dim() == 0 ? b.inverse : scales_of(b).t(),
                     adds_bias ? bias : std::nullopt, {}, made, fast_accumulation && !is_cut(a))
          .to(type);
  return bias && !adds_bias ? result.add_(*bias) : result;
}
#endif

}  // namespace

at::Tensor scaled_product(const Factor& a, const Factor& b, c10::ScalarType type,
                          [[maybe_unused]] bool fast_accumulation, const std::optional<at::Tensor>& bias) {
  check_factors(a, b);
#if PIANOLA_WITH_CUDA
  if (a.data.is_cuda()) return product_on_cuda(a, b, type, fast_accumulation, bias);
#endif
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  at::Tensor result = at::mm(dequantize(a), dequantize(b).t()).to(type);
  return bias ? result.add_(*bias) : result;
}

void check_device([[maybe_unused]] const c10::Device& device, [[maybe_unused]] const Recipe& recipe) {
#if PIANOLA_WITH_CUDA
  if (!device.is_cuda()) return;
  const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(device.index());
  const int capability = 10 * properties->major + properties->minor;
  if (capability < 89) {
    throw UnsupportedError({.what = fmt::format("{} (compute capability {}.{}) has no products of 8 bits",
                                                properties->name, properties->major, properties->minor),
                            .fix = "use a GPU of capability 8.9 or above: Ada, Hopper, Blackwell"});
  }
  if (recipe.scaling == Scaling::block && capability != 90) {
    throw UnsupportedError(
        {.what = fmt::format("block scaling runs on Hopper GPUs, and {} has compute capability {}.{}", properties->name,
                             properties->major, properties->minor),
         .fix = "use Scaling::row or Scaling::delayed"});
  }
#endif
}

}  // namespace pianola::fp8
