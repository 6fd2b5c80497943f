#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/pool_turn.hpp>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

namespace pianola::graph {

// Note [Workspaces of a family]
// Most of the memory of a small graph is cuBLAS's: a workspace for each handle, that of the thread and that of autograd's thread.
// Pools of one family have theirs in common, as graphs of one pool do, since no two of their graphs run at once. But a capture's
// warm-up computes while graphs of other pools may run: it has workspaces of its own, and only the recording, which computes nothing,
// finds the family's. Those are the ones that the first warm-up made. Where the backward pass is not part of the warm-up, as with
// layers, autograd's thread has none yet: the first recording makes it, in its pool, whose memory then stays until the family ends.

/// What CUDA pools of a family share: the turns of their graphs, and workspaces. One pool alone is a family, too.
class CudaPoolFamily final : public PoolFamily {
 public:
  [[nodiscard]] PoolOrder& order() noexcept { return order_; }
  [[nodiscard]] WorkspaceColours& colours() noexcept { return colours_; }

  /// While it lives, products that are recorded on `stream` find the family's workspaces, where a warm-up has made any.
  class Recording {
   public:
    Recording(CudaPoolFamily& family, cudaStream_t stream);
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

   private:
    CudaPoolFamily& family_;
    cudaStream_t stream_;
  };

  /// Memory of all workspaces.
  [[nodiscard]] std::vector<ByteSpan> spans();

  /// Keeps the memory from reuse, once it is freed, until this stream has done its present work.
  void record_stream(c10::cuda::CUDAStream stream);

 private:
  using ByHandle = std::map<void*, at::DataPtr>;
  static void lend(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream, std::size_t bytes, ByHandle& own);
  static void take_out(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream, ByHandle& own);

  PoolOrder order_;
  WorkspaceColours colours_;
  std::mutex mutex_;
  ByHandle gemm_, lt_;
};

}  // namespace pianola::graph
