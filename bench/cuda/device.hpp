#pragma once
#include "harness.hpp"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <memory>

namespace pianola::bench::cuda {

inline const c10::Device kDevice(c10::kCUDA, 0);

/// Waits for all work of the device.
void synchronize();

/// Device time of iterations that are enqueued back to back on the current stream, by CUDA events.
Timer event_timer();

/// While it lives, a stream of torch's pool is current: the default one cannot capture.
class OnPoolStream {
 private:
  c10::cuda::CUDAStreamGuard guard_{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, kDevice.index())};
};

/// Captures on the current stream as torch's users do in C++; the step has to have run there before.
std::unique_ptr<at::cuda::CUDAGraph> torch_capture(const std::function<void()>& step);

/// Bare cudaGraphLaunch of Graph::raw_executable() on the current stream.
std::function<void()> bare_launch(void* executable);

}  // namespace pianola::bench::cuda
