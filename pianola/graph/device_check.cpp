#include <pianola/graph/device_check.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/plural.hpp>

#include <fmt/format.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace pianola::graph {
namespace {

c10::Device usable_cuda_device(c10::Device device) {
#if PIANOLA_WITH_CUDA
  const int count = c10::cuda::device_count();
  if (count == 0) {
    throw DeviceError({.what = "there is no CUDA device: no driver is loaded, or it sees no GPU",
                       .fix = "use torch::kCPU, where the tape keeps the same promises, or check nvidia-smi"});
  }
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  if (index >= count) {
    throw DeviceError({.what = fmt::format("there is no device cuda:{}; this machine has {} CUDA device{}, from cuda:0",
                                           index, count, plural(count))});
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
#else
  throw DeviceError({.what = fmt::format("this build of Pianola has no CUDA, so there is no device {}", device.str()),
                     .fix = "build with -DPIANOLA_CUDA=ON against a CUDA build of torch, or use torch::kCPU"});
#endif
}

}  // namespace

c10::Device usable_device(c10::Device device) {
  if (device.is_cpu()) return {c10::kCPU};
  if (device.is_cuda()) return usable_cuda_device(device);
  throw UnsupportedError(
      {.what = fmt::format("there is no backend for device '{}'; known are cuda and cpu", device.str())});
}

}  // namespace pianola::graph
