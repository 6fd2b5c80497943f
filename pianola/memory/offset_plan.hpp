#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/interference.hpp>
#include <pianola/memory/piece.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace pianola::memory {

/// Where in one region of memory each of some blocks lies.
struct OffsetPlan {
  std::vector<std::uint64_t> offsets;  ///< Of each block, in bytes from the region's begin; multiples of kBlockUnit.
  std::uint64_t bytes = 0;             ///< Of the region: up to the last of the blocks.
  std::uint64_t bound =
      0;  ///< What no plan goes below: the most bytes that are in use at a time, in whole units; see least_bytes().
};

/// Places blocks whose lives are known before the first of them is made. Two that live at the same time, or interfere, have no byte in
/// common; a block takes whole units, and an empty one takes a unit, too.
///
/// First they are placed as they are made, each in the smallest hole, as an allocator without segments would. Then one by one in other
/// orders, each in the smallest gap between those that it must keep clear of: by size, by length of life, by their product. If the best
/// lies above the bound, what sticks out of it is placed earlier, again and again, until that has helped no more for a while.
///
/// @param blocks        In any order. A life that ends before it begins is taken for one that ends there.
/// @param interference  Of these blocks, or none.
/// Cost:    n log n for the first; n^2 for each other order, as long as all take about a second.
/// Source:  by size: Pisarchyk, Lee, "Efficient memory management for deep neural net inference", 2020 (greedy by size for
///          offset calculation). What sticks out first: Joslin, Clements, "Squeaky wheel optimization", 1999.
[[nodiscard]] PIANOLA_API OffsetPlan plan_offsets(std::span<const Block> blocks, const Interference& interference = {});

/// The same in a region that others have something of: around what is taken. Blocks that are never freed lie as low as they can: they are
/// what is taken for the next plan, and should leave it the rest in one piece. Where that costs too much, they lie anywhere.
///
/// @param taken  For the whole time, in whole units; no two have a byte in common. The bound counts what is taken below it.
[[nodiscard]] PIANOLA_API OffsetPlan plan_offsets(std::span<const Block> blocks, std::span<const Piece> taken,
                                                  const Interference& interference = {});

}  // namespace pianola::memory
