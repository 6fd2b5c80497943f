#pragma once
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/ledger.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>

namespace pianola::graph {

/// What CUDA graphs of one pool share: a private pool of torch's allocator, the stream they are captured on, cuBLAS's
/// workspaces, and the ledger of who overwrote whose results.
class CudaPool final : public PoolState {
 public:
  explicit CudaPool(c10::Device device);
  ~CudaPool() override;

  [[nodiscard]] std::size_t bytes() const override;
  [[nodiscard]] c10::MempoolId_t id() const noexcept { return id_; }
  [[nodiscard]] c10::cuda::CUDAStream capture_stream() const noexcept { return stream_; }
  [[nodiscard]] BlasWorkspaces& workspaces() noexcept { return workspaces_; }
  [[nodiscard]] PoolLedger& ledger() noexcept { return ledger_; }
  /// The memory goes back to the device, not to torch's cache, when the pool ends: after a failed capture, whose pool
  /// no later one would reuse.
  void return_memory_at_end() noexcept { return_memory_ = true; }

 private:
  c10::MempoolId_t id_;
  c10::cuda::CUDAStream stream_;
  BlasWorkspaces workspaces_;
  PoolLedger ledger_;
  bool return_memory_ = false;
};

}  // namespace pianola::graph
