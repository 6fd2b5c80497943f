#pragma once
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/workspace_colours.hpp>
#include <pianola/graph/ledger.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace pianola::graph {

/// What CUDA graphs of one pool share: a private pool of torch's allocator, cuBLAS's workspaces, those for branches, and
/// the ledger of who overwrote whose results.
class CudaPool final : public PoolState {
 public:
  using Deleter = std::function<void(const PoolState*)>;
  /// With a name that nobody else knows, so far: that of a pool that is gone, where there is one.
  static std::shared_ptr<PoolState> with_own_name(c10::Device device, const Deleter& end);
  static std::shared_ptr<PoolState> named(c10::Device device, PoolId name, const Deleter& end);
  ~CudaPool() override;

  [[nodiscard]] std::size_t bytes() const override;
  [[nodiscard]] std::shared_ptr<void> reserve_used_memory() override;
  [[nodiscard]] BlasWorkspaces& workspaces() noexcept { return workspaces_; }
  [[nodiscard]] WorkspaceColours& colours() noexcept { return colours_; }
  [[nodiscard]] PoolLedger& ledger() noexcept { return ledger_; }
  /// A graph of the pool was replayed there: what the pool frees may still be in use.
  void note_replays_on(c10::cuda::CUDAStream stream);

 private:
  enum class PinnedUse : std::uint8_t { begins, taken_over };  // of the name, in the allocator of pinned memory
  CudaPool(c10::Device device, PoolId name, PinnedUse pinned);

  std::vector<c10::cuda::CUDAStream> replay_streams_;
  BlasWorkspaces workspaces_;
  WorkspaceColours colours_;
  PoolLedger ledger_;
};

}  // namespace pianola::graph
