#include <pianola/graph/cuda/capture_start.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <fmt/format.h>

namespace pianola::graph {

cudaStreamCaptureMode to_cuda(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::global:
      return cudaStreamCaptureModeGlobal;
    case CaptureMode::thread_local_:
      return cudaStreamCaptureModeThreadLocal;
    case CaptureMode::relaxed:
      return cudaStreamCaptureModeRelaxed;
  }
  return cudaStreamCaptureModeGlobal;
}

void bind_context() {
  thread_local bool bound = false;
  if (bound) [[likely]]
    return;
  c10::cuda::set_device(c10::cuda::current_device(), /*force=*/true);
  bound = true;
}

void check_may_capture_on_cuda(c10::Device device, const CaptureOptions& options) {
  if (!options.pool.empty() && options.pool.state()->device() != device) {
    throw UsageError(
        {.what = fmt::format("the pool is on {}, the graph on {}", options.pool.state()->device().str(), device.str()),
         .fix = "make the pool for the graph's device: pianola::GraphPool pool(graph.device())"});
  }
  for (const at::Generator& generator : options.generators) {
    // torch.Generator("cuda") names no device of its own: torch takes it on each.
    const c10::Device of_generator = generator.device();
    if (of_generator.type() != device.type() || (of_generator.has_index() && of_generator != device)) {
      throw UsageError({.what = fmt::format("a generator in 'generators' is on {}, the graph on {}",
                                            generator.device().str(), device.str())});
    }
  }
  if (options.stream && (options.stream->device() != device ||
                         c10::cuda::CUDAStream(*options.stream) == c10::cuda::getDefaultCUDAStream(device.index()))) {
    throw UsageError(
        {.what = fmt::format("stream {} cannot be captured: it is the default stream, or of another device "
                             "than the graph's {}",
                             options.stream->id(), device.str()),
         .fix = "leave 'stream' empty, or take one by c10::cuda::getStreamFromPool(); a graph may be "
                "replayed on any stream"});
  }
  if (capture_status(c10::cuda::getCurrentCUDAStream(device.index()).stream()) != CaptureStatus::none) {
    throw UsageError({.what = "other code is already capturing the current stream",
                      .fix = "captures do not nest: end the outer one first"});
  }
}

}  // namespace pianola::graph
