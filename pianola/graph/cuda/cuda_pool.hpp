#pragma once
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/cuda/pool_clearance.hpp>
#include <pianola/graph/cuda/pool_family.hpp>
#include <pianola/graph/cuda/shared_executable.hpp>
#include <pianola/graph/cuda/sleeping_segments.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/pool_turn.hpp>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace pianola::graph {

/// What CUDA graphs of one pool share: a private pool of torch's allocator, cuBLAS's workspaces, those for branches, and
/// the turns of its graphs, with the ledger of who overwrote whose results.
class CudaPool final : public PoolState {
 public:
  using Deleter = std::function<void(const PoolState*)>;
  /// With a name that nobody else knows, so far: that of a pool that is gone, where there is one.
  /// @param family  nullptr: it is alone.
  static std::shared_ptr<PoolState> with_own_name(c10::Device device, std::shared_ptr<CudaPoolFamily> family,
                                                  PoolTraits traits, const Deleter& end);
  static std::shared_ptr<PoolState> named(c10::Device device, PoolId name, const Deleter& end);
  ~CudaPool() override;

  [[nodiscard]] std::size_t bytes() const override;
  [[nodiscard]] std::vector<ByteSpan> segments() const override;
  [[nodiscard]] std::vector<ByteSpan> workspace_spans() const override;
  [[nodiscard]] std::shared_ptr<void> reserve_used_memory() override { return clearance_.reserve_used_memory(); }
  [[nodiscard]] std::shared_ptr<void> allocate_into() override;
  [[nodiscard]] std::shared_ptr<void> reserve_for_results() override { return clearance_.reserve_for_results(); }
  [[nodiscard]] std::optional<SharedRegions> shared_regions() const override { return clearance_.shared_regions(); }
  /// After a capture that failed: where the pool has no graph, and nobody holds anything of its regions, it begins with new ones.
  void drop_unused_regions() noexcept;
  /// For the plan of the capture that begins.
  [[nodiscard]] PlanRoom room_for_plan() const { return clearance_.room_for_plan(); }
  [[nodiscard]] BlasWorkspaces& workspaces() noexcept { return workspaces_; }
  [[nodiscard]] WorkspaceColours& colours() noexcept { return family_->colours(); }
  /// nullptr: it is alone.
  [[nodiscard]] CudaPoolFamily* family() noexcept { return is_alone_ ? nullptr : family_.get(); }
  [[nodiscard]] PoolTurns& turns() noexcept { return turns_; }
  /// Used in a turn. Whether there are any: shares_executables().
  [[nodiscard]] SharedExecutables& shared_executables() noexcept { return shared_executables_; }
  /// A graph of the pool was replayed there: what the pool frees may still be in use.
  void note_replays_on(c10::cuda::CUDAStream stream, const PoolTurn& turn);

 private:
  enum class PinnedUse : std::uint8_t { begins, taken_over };  // of the name, in the allocator of pinned memory
  CudaPool(c10::Device device, PoolId name, PinnedUse pinned, std::shared_ptr<CudaPoolFamily> family,
           PoolTraits traits);
  void begin_warm_up() override;
  void end_warm_up() override;
  void prepare_sleep() override;
  std::size_t let_memory_go() override;
  void take_memory_back() override;
  void empty_cache() override;
  void end_sleep() noexcept override { asleep_.reset(); }
  void account(PoolMemory& memory) const override;
  bool holds(std::uintptr_t address) const override;
  void wake_for_good() noexcept;

  std::vector<c10::cuda::CUDAStream> replay_streams_;  // changed in a turn
  bool is_alone_;
  std::shared_ptr<CudaPoolFamily> family_;
  BlasWorkspaces workspaces_;
  mutable PoolTurns turns_;
  PoolClearance clearance_;
  SharedExecutables shared_executables_;
  std::optional<AsleepPool> asleep_;
};

}  // namespace pianola::graph
