#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::profiling {

/// Items that look as if each began a repetition: the same there, at regular distances.
struct Anchors {
  std::vector<std::size_t> at;
  std::size_t distance = 0;  ///< The one that spans most of the sequence.
  std::size_t regular = 0;   ///< Sum of the distances that are about as long.
};

inline constexpr std::uint32_t kSeldom = 0xffffffffU;  ///< Symbol of what occurs less than three times.

/// The best anchors of each distance that occurs, at most `limit` of those that span most.
[[nodiscard]] std::vector<Anchors> find_anchors(std::span<const std::uint32_t> symbols, std::uint32_t count,
                                                std::size_t limit);

/// The anchors that occurrences make when what is irregular at both ends is left out; empty `at` where they are too few
/// or mostly irregular.
[[nodiscard]] Anchors anchors_of(std::vector<std::size_t> occurrences);

/// Symbols of twice the length: equal where both the symbol and that `length` items on are. Those that occur less than
/// three times become kSeldom. Returns how many others there are.
std::uint32_t double_length(std::vector<std::uint32_t>& symbols, std::size_t length);

}  // namespace pianola::profiling
