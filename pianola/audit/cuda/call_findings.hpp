#pragma once
#include <pianola/audit/cuda/cuda_calls.hpp>

#include <c10/core/Device.h>
#include <cuda.h>

#include <span>
#include <vector>

namespace pianola::auditing {

/// What a run asked CUDA for.
struct LoggedRun {
  std::span<const CudaCall> calls;
  const OpTrace& trace;
  CUstream own;             ///< The step's stream.
  c10::DeviceIndex device;  ///< Of it.
  bool watched = true;      ///< All calls are there; else only torch's own waits.
};

/// See CudaCallLog::findings().
[[nodiscard]] std::vector<CudaFinding> call_findings(const LoggedRun& run);

}  // namespace pianola::auditing
