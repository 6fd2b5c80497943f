#pragma once
#include <pianola/memory/block.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace pianola::memory::testing {

/// The blocks of a step that nobody wrote: any sizes, any lives.
inline std::vector<Block> random_step(std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::size_t count = 1 + random() % 200;
  const Moment longest = 1 + static_cast<Moment>(random() % 100);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    Block block;
    block.made = static_cast<Moment>(i);
    block.freed = random() % 10 == 0 ? Block::kNever : block.made + 1 + static_cast<Moment>(random()) % longest;
    const std::uint64_t magnitude = std::uint64_t{1} << random() % 24;
    block.bytes = random() % 50 == 0 ? 0 : magnitude + random() % magnitude;
    blocks.push_back(block);
  }
  return blocks;
}

/// The blocks of a training step: each layer leaves activations for its backward pass, has scratch in both, and gives gradients that stay.
class TrainingStep {
 public:
  explicit TrainingStep(std::uint32_t seed) : random_(seed) {
    const std::size_t layers = 2 + random_() % 40;
    const std::uint64_t width = 512U * (1 + random_() % 4096);
    std::vector<std::vector<std::size_t>> kept(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t i = 1 + random_() % 6; i > 0; --i) kept[layer].push_back(make(width * (1 + random_() % 4)));
      scratch(width);
    }
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t gradient = make(width);
      scratch(width);
      make(width * (1 + random_() % 2));  // of the weight
      for (const std::size_t block : kept[layer]) free(block);
      if (layer != 0) free(gradient);
    }
  }

  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }

 private:
  std::size_t make(std::uint64_t bytes) {
    blocks_.push_back({.made = now_++, .bytes = bytes});
    return blocks_.size() - 1;
  }
  void free(std::size_t block) { blocks_[block].freed = now_++; }
  void scratch(std::uint64_t width) {
    const std::size_t first = make(width * (1 + random_() % 8)), second = make(width);
    free(first);
    free(second);
  }

  std::mt19937 random_;
  Moment now_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace pianola::memory::testing
