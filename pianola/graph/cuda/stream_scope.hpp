#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>
#include <utility>

namespace pianola::graph {

/// Work before it is waited for by the capture stream, work after it waits for the capture stream; by events, so that
/// the host never waits.
class CudaStreamScope final : public StreamScope {
 public:
  CudaStreamScope(c10::cuda::CUDAStream capture, std::shared_ptr<CudaPool> pool)
      : pool_(std::move(pool)),
        outer_(c10::cuda::getCurrentCUDAStream(capture.device_index())),
        capture_(capture),
        guard_(capture),
        workspaces_(pool_->workspaces(), capture.stream()) {
    order(outer_, capture_);
  }

  ~CudaStreamScope() override {
    try {
      order(capture_, outer_);
    } catch (const std::exception& error) {
      TORCH_WARN("pianola: streams could not be joined after a capture: ", error.what());
    }
  }

 private:
  static void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
    at::cuda::CUDAEvent done;
    done.record(first);
    done.block(then);
  }

  std::shared_ptr<CudaPool> pool_;  // outlives the scope of its workspaces
  c10::cuda::CUDAStream outer_;
  c10::cuda::CUDAStream capture_;
  c10::cuda::CUDAStreamGuard guard_;
  BlasWorkspaces::Scope workspaces_;
};

}  // namespace pianola::graph
