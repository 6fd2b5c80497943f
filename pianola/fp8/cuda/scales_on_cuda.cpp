#include <pianola/cuda/compiler.hpp>
#include <pianola/fp8/cuda/quantize_kernels.hpp>
#include <pianola/fp8/cuda/scales_code.hpp>
#include <pianola/fp8/scales_operation.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>

namespace pianola::fp8 {
namespace {

CUfunction scales_kernel() {
  static auto& known = *new KernelCache<std::string>;
  return known.get("update_scales", [] {
    return KernelSource{
        .code = kScalesCode,
        .function = "update_scales",
        .options = {fmt::format("-DTENSORS={}", kScalesTensors), fmt::format("-DTHREADS={}", kScalesThreads)}};
  });
}

bool has_scales_kernel(const at::Tensor& history, const at::Tensor& scale) {
  return can_compile_for(compute_capability()) && history.is_contiguous() && scale.is_contiguous() &&
         history.size(0) <= std::numeric_limits<int>::max() / 2 &&
         history.size(1) <= std::numeric_limits<int>::max() / 2;
}

void update_on_cuda(const at::Tensor& history, const at::Tensor& scale, const at::Tensor& updates,
                    const at::Tensor& limits, double divisor, bool most_recent, std::int64_t interval) {
  const c10::cuda::CUDAGuard device(history.device());
  if (!has_scales_kernel(history, scale)) {
    return update_by_operators(history, scale, updates, limits, divisor, most_recent, interval);
  }
  const at::NoGradGuard no_grad;
  float *histories = history.mutable_data_ptr<float>(), *scales = scale.mutable_data_ptr<float>();
  const auto* count = reinterpret_cast<const long long*>(updates.const_data_ptr<std::int64_t>());
  const float* largest = limits.const_data_ptr<float>();
  int length = static_cast<int>(history.size(0)), tensors = static_cast<int>(history.size(1)), recent = most_recent;
  auto by = static_cast<float>(divisor);
  auto every = static_cast<long long>(interval);
  std::array<void*, 9> arguments = {
      static_cast<void*>(&histories), static_cast<void*>(&scales), static_cast<void*>(&count),
      static_cast<void*>(&largest),   static_cast<void*>(&length), static_cast<void*>(&tensors),
      static_cast<void*>(&by),        static_cast<void*>(&recent), static_cast<void*>(&every)};
  launch_kernel(scales_kernel(), static_cast<unsigned>((tensors + kScalesTensors - 1) / kScalesTensors), kScalesThreads,
                c10::cuda::getCurrentCUDAStream(), arguments.data());
  updates.add_(1);
}

}  // namespace

TORCH_LIBRARY_IMPL(pianola, CUDA, library) { library.impl("fp8_update_scales_", &update_on_cuda); }

}  // namespace pianola::fp8
