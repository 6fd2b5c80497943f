#pragma once
#include <pianola/graph/backend.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/joined_stream.hpp>

#include <memory>
#include <utility>

namespace pianola::graph {

/// While it lives, the capture stream is the current one, with the workspaces of a pool.
class CudaStreamScope final : public StreamScope {
 public:
  CudaStreamScope(c10::cuda::CUDAStream capture, std::shared_ptr<CudaPool> pool)
      : pool_(std::move(pool)),
        stream_(capture, "after a capture"),
        workspaces_(pool_->workspaces(), capture.stream()) {}

 private:
  std::shared_ptr<CudaPool> pool_;  // outlives the scope of its workspaces
  JoinedStream stream_;
  BlasWorkspaces::Scope workspaces_;
};

}  // namespace pianola::graph
