#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pianola::testing {

using memory::Block;

/// A step of several chains that meet now and then: each unit reads a few results and makes one, which is freed behind its last reader.
/// Each result lies at bytes of its own.
class ChainsOfWork {
 public:
  explicit ChainsOfWork(std::uint32_t seed) : random_(seed) {
    const std::size_t chains = 2 + random_() % 4, count = 20 + random_() % 80;
    std::vector<std::size_t> newest;
    for (std::size_t i = 0; i < chains; ++i) newest.push_back(make({}));
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t& end = newest[random_() % chains];
      std::vector<std::size_t> reads = {end};
      if (random_() % 6 == 0) reads.push_back(newest[random_() % chains]);
      if (random_() % 4 == 0) reads.push_back(random_() % blocks_.size());
      end = make(reads);
    }
    make(newest);
    units_ = step(std::move(units_));
  }

  [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  [[nodiscard]] const std::vector<ByteSpan>& places() const { return places_; }

  /// The same units, with the blocks where a plan has them.
  [[nodiscard]] std::vector<Unit> laid_out(const memory::OffsetPlan& plan) const {
    std::vector<Unit> moved = units_;
    for (Unit& one : moved) {
      for (Access& access : one.accesses) {
        const auto at = std::ranges::find(places_, access.bytes.begin, &ByteSpan::begin);
        const std::uint64_t begin = kRegion + plan.offsets[static_cast<std::size_t>(at - places_.begin())];
        access.bytes = {.begin = begin, .end = begin + access.bytes.size()};
      }
    }
    return moved;
  }

 private:
  static constexpr std::uint64_t kRegion = std::uint64_t{1} << 40U;

  std::size_t make(const std::vector<std::size_t>& reads) {
    const auto now = static_cast<memory::Moment>(units_.size());
    std::vector<Access> accesses;
    for (const std::size_t block : reads) {
      accesses.push_back(read(places_[block]));
      blocks_[block].freed = now + 1;
    }
    const std::uint64_t bytes = 512 * (1 + random_() % 64);
    places_.push_back({.begin = next_, .end = next_ + bytes});
    next_ += bytes;
    accesses.push_back(write(places_.back()));
    units_.push_back(unit(std::move(accesses), static_cast<double>(1 + random_() % 9)));
    blocks_.push_back({.made = now, .freed = now + 1, .bytes = bytes});
    return blocks_.size() - 1;
  }

  std::mt19937 random_;
  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  std::vector<ByteSpan> places_;
  std::uint64_t next_ = 4096;
};

}  // namespace pianola::testing
