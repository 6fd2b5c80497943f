#include <pianola/memory/interference.hpp>

#include <algorithm>
#include <numeric>

namespace pianola::memory {
namespace {

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kMostStarts = 256;

// All pairs that must have no byte in common, of lives and of interference.
class Together {
 public:
  Together(std::span<const Block> blocks, const Interference& interference)
      : blocks_(blocks), words_((blocks.size() + kWordBits - 1) / kWordBits), rows_(blocks.size() * words_) {
    for (std::size_t one = 0; one < blocks.size(); ++one) {
      for (std::size_t other = 0; other < one; ++other) {
        if (!lives_meet(blocks[one], blocks[other]) && !interference.has(one, other)) continue;
        set(one, other);
        set(other, one);
      }
    }
    by_size_.resize(blocks.size());
    std::iota(by_size_.begin(), by_size_.end(), std::size_t{0});
    std::ranges::stable_sort(by_size_, std::ranges::greater{}, [&](std::size_t i) { return blocks_[i].bytes; });
  }

  // Of those that live at this moment, and of as many others as are together with all of them, the largest first.
  [[nodiscard]] std::uint64_t bytes_from(Moment at) const {
    std::vector<std::uint64_t> with_all(words_, ~std::uint64_t{0});
    std::uint64_t bytes = 0;
    const auto take = [&](std::size_t block) {
      bytes += in_whole_units(blocks_[block].bytes);
      for (std::size_t word = 0; word < words_; ++word) with_all[word] &= rows_[block * words_ + word];
    };
    const Block now{.made = at, .freed = at + 1};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (lives_meet(blocks_[i], now)) take(i);
    }
    for (const std::size_t i : by_size_) {
      if ((with_all[i / kWordBits] >> (i % kWordBits) & 1U) != 0) take(i);
    }
    return bytes;
  }

 private:
  void set(std::size_t row, std::size_t bit) {
    rows_[row * words_ + bit / kWordBits] |= std::uint64_t{1} << (bit % kWordBits);
  }

  std::span<const Block> blocks_;
  std::size_t words_;
  std::vector<std::uint64_t> rows_;
  std::vector<std::size_t> by_size_;
};

// When most is in use comes first, and moments all over the step.
std::vector<Moment> starting_points(const std::vector<Block>& in_order) {
  std::vector<Moment> starts = {peak_of(in_order).at};
  const std::size_t stride = std::max<std::size_t>(1, in_order.size() / kMostStarts);
  for (std::size_t i = 0; i < in_order.size(); i += stride) starts.push_back(in_order[i].made);
  return starts;
}

}  // namespace

Interference Interference::among(std::span<const std::size_t> blocks) const {
  if (empty()) return {};
  Interference some(blocks.size());
  for (std::size_t one = 0; one < blocks.size(); ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      if (has(blocks[one], blocks[other])) some.add(one, other);
    }
  }
  return some;
}

std::uint64_t least_bytes(std::span<const Block> blocks, const Interference& interference) {
  if (blocks.empty()) return 0;
  std::vector<Block> in_order(blocks.begin(), blocks.end());
  for (Block& block : in_order) block.bytes = in_whole_units(block.bytes);
  std::ranges::stable_sort(in_order, {}, &Block::made);
  if (interference.empty()) return peak_bytes(in_order);
  const Together together(blocks, interference);
  std::uint64_t most = 0;
  for (const Moment start : starting_points(in_order)) most = std::max(most, together.bytes_from(start));
  return most;
}

}  // namespace pianola::memory
