#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/graph/cuda/planned_region.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/pool_turn.hpp>
#include <pianola/memory/apart_plan.hpp>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pianola::graph {

// Note [What a capture keeps clear of]
// A replay writes all that its capture was handed out: what has been freed since (scratch), and what has not (results). So where the blocks of
// a later capture may lie depends on who is replayed while they are needed. Who captures says so, by a reservation that lives meanwhile
// (Note [Memory of captures] in callable/graph_maker.hpp):
//
//   reservation             graphs are replayed               planned scratch    planned results    what torch lays out
//   none                    in the order of their captures    held whole         held whole         held
//   reserve_for_results()   in any order                      held whole left    held whole used *  held used
//   reserve_used_memory()   also between parts of a replay    held whole used    held whole used    held used
//
//   held   A block has it, of whichever capture.
//   used   A graph that the pool still has was handed it out in its capture, as the ledger knows.
//   left   A recording held it at its end: each replay leaves a result there, also when nobody has the first one any more.
//   whole  It was handed out to a graph whose replays stop between pieces, where others may be replayed.
//   *      In a region of their own: Note [Results apart from scratch] in memory/apart_plan.hpp.
//
// What torch's allocator lays out is in other segments than the regions of plans: there a reservation allocates what is used (PoolReservation).
// A pool that was not made for plans has no regions: then a plan lies in a block of torch's, and both reservations are one. A
// recording that holds at its end what its plan had freed may hold what others write, and so does one that turns out to stop between
// pieces: under reserve_for_results() both are refused (HeldScratch).

/// Where the plan of a recording may lay blocks.
struct PlanRoom {
  std::shared_ptr<PlannedRegion> shared = {};  ///< Of the pool; nullptr: the recording has a region of its own.
  std::shared_ptr<PlannedRegion> kept = {};    ///< For what is never freed; nullptr: it lies where all else does.
  std::vector<ByteSpan> used = {};             ///< By earlier graphs: what is never freed keeps clear of it.

  /// What plans keep clear of in either region.
  [[nodiscard]] memory::TakenApart taken() const;
};

/// What captures into one pool keep clear of, and the regions that they plan in.
///
/// Threads:  reservations may be made and dropped on any; all else belongs to the pool's capture that is open.
class PoolClearance {
 public:
  /// Without regions. @param turns  Of the pool; they outlive it.
  PoolClearance(c10::Device device, PoolId pool, PoolTurns& turns) : device_(device), pool_(pool), turns_(turns) {}
  PoolClearance(const PoolClearance&) = delete;
  PoolClearance& operator=(const PoolClearance&) = delete;
  /// What captures plan lies in regions of the pool. Before the first.
  void share_regions();

  /// In force while the result lives; see PoolState. @throws UnsupportedError  As PoolReservation.
  [[nodiscard]] std::shared_ptr<void> reserve_used_memory();
  [[nodiscard]] std::shared_ptr<void> reserve_for_results();
  /// For the plan of a capture that begins, by the reservations that are in force.
  [[nodiscard]] PlanRoom room_for_plan() const;
  /// The same for a forecast; nullopt: each capture plans in a region of its own.
  [[nodiscard]] std::optional<SharedRegions> shared_regions() const;

  /// The pool has no graph: regions of which nobody holds anything are replaced by new ones.
  /// @param replayed_on  Where work may be on their memory.
  void drop_unused_regions(std::span<const c10::cuda::CUDAStream> replayed_on);
  /// The pool ends. A block in a region may live on.
  void drop_regions(std::span<const c10::cuda::CUDAStream> replayed_on);

 private:
  [[nodiscard]] std::vector<ByteSpan> used() const { return PoolTurn(turns_).ledger().allocated(); }

  c10::Device device_;
  PoolId pool_;
  PoolTurns& turns_;
  std::shared_ptr<PlannedRegion> region_, kept_region_;  // nullptr: plans share nothing
  std::shared_ptr<std::atomic<int>> apart_;              // reserve_for_results() that are in force
};

}  // namespace pianola::graph
