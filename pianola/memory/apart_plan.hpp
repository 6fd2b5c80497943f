#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/interference.hpp>
#include <pianola/memory/piece.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::memory {

// Note [Results apart from scratch]
// Graphs of a pool run one after the other, in any order. What a graph frees before its end may have the bytes of what another one frees:
// each run writes it first. What it leaves behind must not, or the other one's next run overwrites it; nor may it be given to scratch of
// later graphs. In one region the results of a graph would lie behind the scratch of the largest one so far, and cut that region up for
// the next that is larger. So there are two: one is as large as the largest scratch, in the other lie all results.

/// Where blocks lie that are never freed, in one region, and all others, in another.
struct ApartPlan {
  std::vector<std::uint64_t> offsets;  ///< Of each block in its region; multiples of kBlockUnit.
  std::uint64_t scratch_bytes = 0;     ///< Of either region: up to the last of its blocks.
  std::uint64_t kept_bytes = 0;
};

/// What blocks of a plan must keep clear of, by the region that they lie in, all the time; no two of a region have a byte in common.
struct TakenApart {
  std::vector<Piece> of_scratch;  ///< What is held, and what other graphs leave behind.
  std::vector<Piece> of_kept;     ///< What is held, and what other graphs have used.
};

/// As plan_offsets(), of each kind by itself.
[[nodiscard]] PIANOLA_API ApartPlan plan_apart(std::span<const Block> blocks, const TakenApart& taken,
                                               const Interference& interference = {});

/// As find_flaw() of a plan in one region. Shares no code with plan_apart().
[[nodiscard]] PIANOLA_API std::optional<std::string> find_flaw(std::span<const Block> blocks, const ApartPlan& plan,
                                                               const TakenApart& taken);

/// Two lists of pieces as one, in the order of addresses and in whole units, of which no two have a byte in common. Pieces begin at units.
[[nodiscard]] PIANOLA_API std::vector<Piece> united(std::span<const Piece> some, std::span<const Piece> others);

}  // namespace pianola::memory
