#include "cuda/device.hpp"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

namespace pianola::bench::cuda {

void synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

Timer event_timer() {
  return [](const std::function<void()>& iteration, int count) {
    at::cuda::CUDAEvent start(cudaEventDefault);
    at::cuda::CUDAEvent end(cudaEventDefault);
    synchronize();
    start.record();
    for (int i = 0; i < count; ++i) iteration();
    end.record();
    synchronize();
    return start.elapsed_time(end) * 1000.0 / count;
  };
}

std::unique_ptr<at::cuda::CUDAGraph> torch_capture(const std::function<void()>& step) {
  auto graph = std::make_unique<at::cuda::CUDAGraph>(/*keep_graph=*/true);
  graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
  step();
  graph->capture_end();
  graph->instantiate();
  return graph;
}

std::function<void()> bare_launch(void* executable) {
  return [executable = static_cast<cudaGraphExec_t>(executable)] {
    C10_CUDA_CHECK(cudaGraphLaunch(executable, c10::cuda::getCurrentCUDAStream()));
  };
}

}  // namespace pianola::bench::cuda
