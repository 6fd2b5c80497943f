#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/interference.hpp>
#include <pianola/parallel/plan.hpp>

#include <limits>
#include <span>

namespace pianola::parallel {

/// Of two units that no dependency orders, the model tells when they run. Where the one is done long before the other begins, an order
/// between the two costs nothing; the less so, the longer lanes have to wait.
inline constexpr double kNeverSure = std::numeric_limits<double>::infinity();

/// Which blocks must have no byte in common although their lives do not meet, so that lanes run as they are planned: see Note [Blocks in
/// use at once] in memory/interference.hpp. Who touches a block is known by where it lies. What nobody touches interferes with nothing.
///
/// @param blocks   In the order of the capture, with their lives there.
/// @param places   Of each block, where it lay in the capture that the plan was made of: no two have a byte in common.
/// @param sure_us  By the model, in us: a unit that ends so much earlier than another begins counts as done before; where it is
///                 negative, one that ends so much later, too. kNeverSure: only what dependencies order does. Else blocks share more
///                 bytes, for dependencies that the plan has not; with -kNeverSure all that share them on one lane do.
/// Cost:  the square of the blocks.
[[nodiscard]] memory::Interference interference_on_lanes(const Plan& plan, std::span<const memory::Block> blocks,
                                                         std::span<const ByteSpan> places, double sure_us = kNeverSure);

}  // namespace pianola::parallel
