#include <pianola/verify/devices.hpp>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace pianola::verification {

std::vector<c10::Device> cuda_devices_in_use() {
  std::vector<c10::Device> devices;
  if (!at::Context::hasCUDA()) return devices;
  const auto& cuda = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA);
  const auto count = static_cast<c10::DeviceIndex>(cuda.deviceCount());
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    if (cuda.hasPrimaryContext(index)) devices.emplace_back(c10::kCUDA, index);
  }
  return devices;
}

void wait_for(const std::vector<c10::Device>& devices) {
  for (const c10::Device& device : devices) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

bool is_stream_captured([[maybe_unused]] c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (!device.is_cuda()) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  return cudaStreamIsCapturing(stream.stream(), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
#else
  return false;
#endif
}

}  // namespace pianola::verification
