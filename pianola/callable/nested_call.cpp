#include <pianola/callable/nested_call.hpp>

#include <pianola/callable/eager_run.hpp>
#include <pianola/graph/open_capture.hpp>

#include <ATen/Context.h>
#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#endif

namespace pianola::callable {
namespace {

bool is_captured_by_torch(std::span<const at::Tensor> inputs) {
#if PIANOLA_WITH_CUDA
  if (!at::globalContext().hasCUDA()) return false;
  const bool is_on_host = !inputs.empty() && !inputs.front().is_cuda();
  if (is_on_host && !c10::cuda::getDeviceIndexWithPrimaryContext()) return false;  // else nobody has used a GPU so far
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#else
  (void)inputs;
  return false;
#endif
}

}  // namespace

bool runs_inside_another(std::span<const at::Tensor> inputs) {
  return graph::capture_is_open() || EagerRun::is_open() || is_captured_by_torch(inputs);
}

}  // namespace pianola::callable
