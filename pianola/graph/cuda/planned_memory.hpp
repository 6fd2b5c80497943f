#pragma once
#include <pianola/graph/cuda/planned_region.hpp>
#include <pianola/graph/cuda/pool_clearance.hpp>
#include <pianola/memory/planned_space.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/trace/op_stream.hpp>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [Blocks inside a block]
// A pool of torch's asks an allocator for segments, and lays blocks in them by itself: no plan can say where. So while a capture is
// recorded, an allocator of Pianola's stands before torch's, which hands out the places of a plan inside a region, and hands
// all else on. It stays there from the first such capture on: a block that outlives its capture may be given another stream, shared with
// another process or freed raw, and torch's allocator does not know it. The region lives as long as a block inside, the graph or, if its graphs
// share one, the pool.

/// Memory of one recording, in which blocks lie where a plan puts them. Has to be shown the recording's operations.
class PlannedMemory final : public trace::OpObserver {
 public:
  /// What `stream` asks for from now on, on any thread, is handed out by the plan; what the plan does not foresee, by torch's allocator.
  /// @param stream  It is current, is captured, and what it asks of torch's allocator goes to `pool`.
  /// @param run     Before.
  /// @param in      PoolClearance::room_for_plan().
  /// @return  nullptr where there is nothing to plan, or no room for the region.
  /// @throws UnsupportedError  Torch runs with another allocator than its native one, or is of a version that was not looked at.
  static std::shared_ptr<PlannedMemory> begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                              const memory::StepRun& run, PlanRoom in);
  /// What `stream` asks for lies side by side, in the order in which it is asked for, and bytes that are freed are not handed out again: in
  /// so many bytes of addresses, behind which there is next to no memory. Nothing of the recording may run.
  /// @return  nullptr: the driver has no such addresses.
  static std::shared_ptr<PlannedMemory> begin_apart(c10::cuda::CUDAStream stream, c10::MempoolId_t pool,
                                                    std::uint64_t bytes);
  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  /// No more is handed out.
  void end() noexcept;
  /// Then, once: notes what is held of it, which later captures may have to keep clear of (Note [What a capture keeps clear of]).
  /// @throws HeldScratch  Some is held where earlier graphs write, since the plan had it freed.
  void settle();
  /// Its graph is launched in pieces, and what is called by hand between them may replay others: later plans keep clear of all of it.
  /// @param allocated    What it was handed out, and others maybe.
  /// @throws HeldScratch  Results lie apart, and its scratch in that of earlier graphs.
  void keep_whole(std::span<const ByteSpan> allocated);
  /// Whether replays of other graphs may overwrite its scratch.
  [[nodiscard]] bool shares_scratch() const noexcept { return !is_kept_whole_; }

  /// Its memory is not used again before the present work of this stream is done, once it is freed. That of a shared region the pool
  /// frees, and sees to.
  void record_stream(c10::cuda::CUDAStream stream) const {
    if (!region_->is_shared()) region_->record_stream(stream);
  }

  /// Of the first byte of the region.
  [[nodiscard]] std::uintptr_t address() const;
  /// What no plan of the run goes below; 0 where results lie apart.
  [[nodiscard]] std::uint64_t bound() const noexcept { return bound_; }
  /// Of the region, or of both.
  [[nodiscard]] std::size_t bytes() const { return region_->bytes() + (kept_ ? kept_->bytes() : 0); }

  class Allocator;
  struct Room;
  PlannedMemory(Room room, c10::cuda::CUDAStream stream, c10::MempoolId_t pool, const memory::StepRun& run);
  PlannedMemory(const PlannedMemory&) = delete;
  PlannedMemory& operator=(const PlannedMemory&) = delete;
  ~PlannedMemory() override { region_->forget(number_); }

 private:
  [[nodiscard]] std::vector<ByteSpan> held() const;  // but for results that lie apart
  static std::optional<Room> make_room(const memory::StepRun& run, PlanRoom in);
  static std::optional<Room> make_room_apart(std::uint64_t bytes, c10::Device device);
  std::optional<memory::PlannedSpace::Place> take(std::uint64_t bytes);
  static std::shared_ptr<PlannedMemory> open(std::optional<Room> room, c10::cuda::CUDAStream stream,
                                             c10::MempoolId_t pool, const memory::StepRun& run);

  std::uint64_t number_;  // of all recordings
  std::uint64_t bound_;
  std::shared_ptr<PlannedRegion> region_;
  std::shared_ptr<PlannedRegion> kept_;  // nullptr: results lie with all else
  std::vector<ByteSpan> used_;           // by earlier graphs, where they do not; until settle()
  bool is_kept_whole_ = false;
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
  memory::PlannedSpace space_;               // under the regions' lock while it is open
  std::optional<std::uint64_t> next_apart_;  // the same: where the next block lies, if all lie side by side
  std::vector<std::pair<std::shared_ptr<PlannedRegion>, std::uint64_t>>
      late_;  // freed, and in use on other streams: until its end
};

}  // namespace pianola::graph
