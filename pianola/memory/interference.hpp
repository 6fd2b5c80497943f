#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/block.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pianola::memory {

// Note [Blocks in use at once]
// In a step that runs one operation after the other, two blocks may have the same bytes if their lives do not meet. On parallel lanes an
// operation may run beside one that was captured long before it. There a block is in use from the first operation that touches it to the
// last one, and two blocks may have the same bytes only if all who touch the one are done before any that touches the other.

/// Of some blocks, by number, the pairs that must have no byte in common although their lives do not meet. Register allocation
/// calls two such values interfering, and colours their graph as a plan of offsets does.
///
/// Memory:  a bit for each pair, twice.
class PIANOLA_API Interference {
 public:
  /// No pair.
  Interference() = default;
  explicit Interference(std::size_t blocks) : words_((blocks + kBits - 1) / kBits), bits_(blocks * words_) {}

  /// Whether none was added.
  [[nodiscard]] bool empty() const noexcept { return pairs_ == 0; }
  [[nodiscard]] std::size_t pairs() const noexcept { return pairs_; }
  /// @param one, other  Different blocks, whose pair was not added before.
  void add(std::size_t one, std::size_t other) noexcept {
    set(one, other);
    set(other, one);
    ++pairs_;
  }
  [[nodiscard]] bool has(std::size_t one, std::size_t other) const noexcept {
    return !empty() && (bits_[one * words_ + other / kBits] >> (other % kBits) & 1U) != 0;
  }
  /// That of some of the blocks, numbered anew in this order.
  [[nodiscard]] Interference among(std::span<const std::size_t> blocks) const;

 private:
  static constexpr std::size_t kBits = 64;
  void set(std::size_t row, std::size_t bit) noexcept {
    bits_[row * words_ + bit / kBits] |= std::uint64_t{1} << (bit % kBits);
  }

  std::size_t words_ = 0, pairs_ = 0;
  std::vector<std::uint64_t> bits_;  // of each block, all others
};

/// Whether two blocks must have no byte in common for their lives alone. A life that ends before it begins is taken for one that ends there.
[[nodiscard]] constexpr bool lives_meet(const Block& one, const Block& other) {
  const auto end = [](const Block& block) { return block.freed > block.made ? block.freed : block.made + 1; };
  return one.made < end(other) && other.made < end(one);
}

/// What no plan goes below: the bytes, in whole units, of the heaviest blocks that were found of which each two must have no byte in
/// common. Without interference, exactly the most that is in use at a time; with it, such blocks are looked for greedily, and heavier ones may
/// exist.
/// Cost:  n^2 for a few hundred starting points.
[[nodiscard]] PIANOLA_API std::uint64_t least_bytes(std::span<const Block> blocks, const Interference& interference);

}  // namespace pianola::memory
