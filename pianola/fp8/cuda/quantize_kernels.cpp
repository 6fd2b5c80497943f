#include <pianola/fp8/cuda/quantize_kernels.hpp>

#include <pianola/fp8/cuda/quantize_code.hpp>

#include <ATen/cuda/CUDAContext.h>

#include <fmt/format.h>

#include <tuple>

namespace pianola::fp8 {
namespace {

int number_of(c10::ScalarType element) {
  if (element == c10::kBFloat16) return 0;
  return element == c10::kHalf ? 1 : 2;
}

}  // namespace

bool KernelKind::operator<(const KernelKind& other) const {
  const auto all = [](const KernelKind& kind) {
    return std::tuple(kind.element, kind.type, kind.granularity, kind.powers_of_two, kind.notes_amaxes);
  };
  return all(*this) < all(other);
}

KernelSource source_of(const KernelKind& kind) {
  return {.code = kQuantizeCode,
          .function = kind.notes_amaxes ? "note_amaxes" : "quantize",
          .options = {fmt::format("-DELEMENT={}", number_of(kind.element)),
                      fmt::format("-DE5M2={}", kind.type == c10::kFloat8_e5m2 ? 1 : 0),
                      fmt::format("-DPOWERS={}", kind.powers_of_two ? 1 : 0), fmt::format("-DTILE={}", kQuantizeTile),
                      fmt::format("-DTHREADS={}", kQuantizeThreads),
                      fmt::format("-DLARGEST={:.1f}f", largest_of(kind.type)),
                      fmt::format("-DSCALES={}", static_cast<int>(kind.granularity))}};
}

int compute_capability() {
  const cudaDeviceProp* const properties = at::cuda::getCurrentDeviceProperties();
  return 10 * properties->major + properties->minor;
}

bool has_quantize_kernels() { return compute_capability() >= 89 && can_compile_for(compute_capability()); }

CUfunction quantize_kernel(const KernelKind& kind) {
  static auto& known = *new KernelCache<KernelKind>;
  return known.get(kind, [&] { return source_of(kind); });
}

}  // namespace pianola::fp8
