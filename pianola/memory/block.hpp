#pragma once
#include <pianola/core/export.hpp>

#include <cstdint>
#include <limits>
#include <span>

namespace pianola::memory {

/// When, on any clock that only grows: nanoseconds, or the number of an event.
using Moment = std::int64_t;

/// A block of memory that an allocator handed out, over its life: from `made` on, and before `freed`.
struct Block {
  static constexpr Moment kNever = std::numeric_limits<Moment>::max();

  Moment made = 0;
  Moment freed = kNever;
  std::uint64_t bytes = 0;
  std::int64_t thread = 0;  ///< That asked for it.
};

/// Torch's allocator hands out multiples of it, and so does a plan: enough for all of CUDA's copies and products.
inline constexpr std::uint64_t kBlockUnit = 512;

/// In whole units; one at least, since two empty blocks have two addresses.
[[nodiscard]] constexpr std::uint64_t in_whole_units(std::uint64_t bytes) {
  return bytes == 0 ? kBlockUnit : (bytes + kBlockUnit - 1) / kBlockUnit * kBlockUnit;
}

/// When most is in use, if there is nothing but some blocks: behind which of the moments at which one is made.
struct Peak {
  std::uint64_t bytes = 0;
  Moment at = 0;
};
/// @param blocks  In the order of `made`.
[[nodiscard]] PIANOLA_API Peak peak_of(std::span<const Block> blocks);
/// Its bytes.
[[nodiscard]] inline std::uint64_t peak_bytes(std::span<const Block> blocks) { return peak_of(blocks).bytes; }

}  // namespace pianola::memory
