#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/offset_plan.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::memory {

/// A block, and whose it is.
struct PicturedBlock {
  Block life;                 ///< Its moments count events, from 0.
  std::uint32_t owner = 0;    ///< Index in Picture::owners.
  std::int32_t made_in = -1;  ///< Number of the operation, from 0; -1: none.
  std::int32_t freed_in = -1;
};

/// The memory of a step over its operations: who lives when, and where.
struct Picture {
  std::string title;
  std::vector<PicturedBlock> blocks;  ///< In the order in which they were made.
  std::vector<std::string> owners;    ///< Call sites, as sentences show them.
  OffsetPlan places;                  ///< Of the blocks: where a plan puts them, or where they lie in a pool.
  std::uint64_t pool = 0;             ///< Bytes of the pool; with a plan, those that torch's allocator would take.
  std::vector<std::uint64_t> segments =
      {};  ///< Where each segment of the pool begins, one behind the other; with a plan none.
};

/// A page that needs nothing else: the blocks as rectangles, the bytes in use over them, the peak by call site. Light and dark.
[[nodiscard]] PIANOLA_API std::string to_html(const Picture& picture);

}  // namespace pianola::memory
