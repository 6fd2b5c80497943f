#include <pianola/fp8/product.hpp>

#include <pianola/core/error.hpp>

#include <ATen/ops/_scaled_mm.h>
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
// What _scaled_mm is given: scales of rows of its second factor stand in columns, and those of blocks lie along the rows.
at::Tensor product_on_cuda(const Factor& a, const Factor& b, c10::ScalarType type, bool fast_accumulation) {
  const auto is_cut = [](const Factor& factor) {
    return factor.granularity == Granularity::block_1x128 || factor.granularity == Granularity::block_128x128;
  };
  const auto lengthwise = [](const Factor& factor) {
    return factor.granularity == Granularity::block_1x128 ? factor.inverse.t().contiguous().t() : factor.inverse;
  };
  const bool is_by_rows = a.granularity == Granularity::row;
  // Products by rows give bfloat16 alone.
  const c10::ScalarType made = is_by_rows ? c10::kBFloat16 : type;
  const at::Tensor of_b = b.inverse.dim() == 0 ? b.inverse : lengthwise(b).t();
  return at::_scaled_mm(a.data, b.data.t(), lengthwise(a), of_b, {}, {}, made, fast_accumulation && !is_cut(a))
      .to(type);
}
#endif

}  // namespace

at::Tensor scaled_product(const Factor& a, const Factor& b, c10::ScalarType type,
                          [[maybe_unused]] bool fast_accumulation) {
  check_factors(a, b);
#if PIANOLA_WITH_CUDA
  if (a.data.is_cuda()) return product_on_cuda(a, b, type, fast_accumulation);
#endif
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return at::mm(dequantize(a), dequantize(b).t()).to(type);
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
