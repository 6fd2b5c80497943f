#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/apart_plan.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/region_space.hpp>
#include <pianola/memory/same_place.hpp>
#include <pianola/memory/step_run.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pianola::memory {

// Note [A plan is advice]
// A plan is made of one run of a step, and serves another one. If that asks for other blocks, or frees them later, places of the plan
// are taken. So each place is looked at when it is asked for: one in which a living block has a byte is not handed out. What the plan
// does not foresee gets no place at all, since it could only take another's.

/// Lays the blocks of a run where a plan puts them: each operation asks for those of its twin in the plan's run, in that order, with some
/// missing and some new ones.
class PIANOLA_API PlannedSpace {
 public:
  /// @param space  Lives as long. Places of the plan behind its end are not handed out.
  PlannedSpace(const StepRun& run, const OffsetPlan& plan, RegionSpace& space);
  /// The same in two regions; see Note [Results apart from scratch].
  PlannedSpace(const StepRun& run, const ApartPlan& plan, RegionSpace& scratch, RegionSpace& kept);

  /// The next operation begins. @param operation  As in StepRun.
  void begin_operation(const void* operation);
  struct Place {
    std::uint64_t offset = 0;
    bool is_kept = false;  ///< It lies in the second region.
  };
  /// The place of the next block of this size; nullopt: the operation has no such block in the plan, or its place is taken.
  /// Cost:  log n.
  std::optional<Place> take(std::uint64_t bytes);
  /// Blocks that were asked for, and got no place.
  [[nodiscard]] std::size_t refused() const noexcept { return refused_; }

 private:
  struct Planned {
    std::uint64_t offset, bytes;
    bool is_kept;
  };
  PlannedSpace(const StepRun& run, std::span<const std::uint64_t> offsets, RegionSpace& space, RegionSpace* kept);
  [[nodiscard]] const Planned* next_of(std::uint64_t bytes);
  void go_to(std::int64_t operation);
  std::nullopt_t refuse();

  std::vector<Planned> places_;      // in the order in which they are asked for
  std::vector<std::size_t> begins_;  // those of an operation, from -1 on: its first place; and the end of all
  SamePlace operation_;
  std::size_t next_ = 0, end_ = 0;  // places of the operation at hand
  RegionSpace* space_;
  RegionSpace* kept_;  // nullptr: all lie in one
  std::size_t refused_ = 0;
};

}  // namespace pianola::memory
