#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/interference.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/piece.hpp>

#include <optional>
#include <span>
#include <string>

namespace pianola::memory {

/// Why a plan must not be used: two blocks that live at the same time, or interfere, have bytes in common, or a block lies outside of the region,
/// or between two units. nullopt: it is proved. Shares no code with plan_offsets().
///
/// Cost:  n log n; with interference n^2.
/// @param taken  Bytes of the region that no block may have, at any time; no two have a byte in common.
[[nodiscard]] PIANOLA_API std::optional<std::string> find_flaw(std::span<const Block> blocks, const OffsetPlan& plan,
                                                               std::span<const Piece> taken = {},
                                                               const Interference& interference = {});

}  // namespace pianola::memory
