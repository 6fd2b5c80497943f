#pragma once
#include <pianola/graph/options.hpp>

#include <c10/core/Device.h>

#include <cuda_runtime_api.h>

namespace pianola::graph {

/// What a capture on CUDA needs of its thread before it may begin.
/// @throws UsageError  The options do not fit the device, or its current stream is being captured.
void check_may_capture_on_cuda(c10::Device device, const CaptureOptions& options);

cudaStreamCaptureMode to_cuda(CaptureMode mode);

/// The driver wants a context on the calling thread; torch binds one only with the first runtime call.
void bind_context();

}  // namespace pianola::graph
