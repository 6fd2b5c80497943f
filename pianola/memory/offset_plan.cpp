#include <pianola/memory/offset_plan.hpp>

#include <pianola/memory/free_pieces.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

namespace pianola::memory {
namespace {

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMostWork = 400'000'000;  // looks at a placed block, for all orders together: a second
constexpr int kMostInVain = 40;                   // orders one after the other that are no better

using Order = std::vector<std::size_t>;

struct Placed {
  Moment made, freed;
  std::uint64_t begin, end;
};

// What was placed so far, by address.
class Region {
 public:
  explicit Region(std::size_t blocks) { placed_.reserve(blocks); }

  // In the smallest gap that holds the block; kNoLimit if it would end behind `limit`.
  std::uint64_t place(const Block& block, std::uint64_t limit) {
    const std::uint64_t bytes = in_whole_units(block.bytes);
    std::uint64_t top = 0, best = kNoLimit, smallest = kNoLimit;
    for (const Placed& one : placed_) {
      if (one.made >= block.freed || one.freed <= block.made) continue;
      if (one.begin > top && one.begin - top >= bytes && one.begin - top < smallest) {
        smallest = one.begin - top;
        best = top;
        if (smallest == bytes) break;
      }
      top = std::max(top, one.end);
    }
    if (best == kNoLimit) best = top;
    if (best + bytes > limit) return kNoLimit;
    const Placed placed = {.made = block.made, .freed = block.freed, .begin = best, .end = best + bytes};
    placed_.insert(std::ranges::upper_bound(placed_, placed.begin, {}, &Placed::begin), placed);
    return best;
  }

 private:
  std::vector<Placed> placed_;
};

// The blocks, and the best plan so far.
class Search {
 public:
  explicit Search(std::span<const Block> blocks) : blocks_(blocks.begin(), blocks.end()) {
    for (Block& block : blocks_) {
      block.freed = std::max(block.freed, block.made + 1);
      block.bytes = in_whole_units(block.bytes);
      if (block.freed != Block::kNever) end_ = std::max(end_, block.freed);
      end_ = std::max(end_, block.made + 1);
    }
    std::vector<Block> in_order = blocks_;
    std::ranges::stable_sort(in_order, {}, &Block::made);
    best_.bound = peak_bytes(in_order);
  }

  [[nodiscard]] bool is_done() const { return best_.bytes == best_.bound || work_ > kMostWork; }

  // Keeps the plan if it is better.
  void attempt(const Order& order) {
    if (is_done()) return;
    Region region(blocks_.size());
    std::vector<std::uint64_t> offsets(blocks_.size());
    std::uint64_t bytes = 0;
    const std::uint64_t limit = best_.bytes - kBlockUnit;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Block& block = blocks_[order[i]];
      work_ += i;
      if (work_ > kMostWork) return;
      offsets[order[i]] = region.place(block, limit);
      if (offsets[order[i]] == kNoLimit) {
        stopped_at_ = order[i];
        return;
      }
      bytes = std::max(bytes, offsets[order[i]] + block.bytes);
    }
    best_.offsets = std::move(offsets);
    best_.bytes = bytes;
    best_order_ = order;
    stopped_at_.reset();
  }

  // One pass over time, as an allocator would without segments: whatever is asked for next lies in the smallest hole that holds it.
  void place_over_time() {
    Order order = largest_first([](const Block& block) { return -block.made; });
    FreePieces free;
    free.give_back({.address = 0, .bytes = kNoLimit});
    using End = std::pair<Moment, std::size_t>;
    std::priority_queue<End, std::vector<End>, std::greater<>> ends;
    best_.offsets.assign(blocks_.size(), 0);
    best_.bytes = 0;
    for (const std::size_t i : order) {
      for (; !ends.empty() && ends.top().first <= blocks_[i].made; ends.pop()) {
        const std::size_t freed = ends.top().second;
        free.give_back({.address = best_.offsets[freed], .bytes = blocks_[freed].bytes});
      }
      const Piece piece = *free.take_smallest(blocks_[i].bytes);  // one has no end
      const std::uint64_t end = piece.address + blocks_[i].bytes;
      if (piece.bytes > blocks_[i].bytes) free.give_back({.address = end, .bytes = piece.bytes - blocks_[i].bytes});
      best_.offsets[i] = piece.address;
      best_.bytes = std::max(best_.bytes, end);
      ends.emplace(blocks_[i].freed, i);
    }
    best_order_ = std::move(order);
  }

  template <class Key>
  [[nodiscard]] Order largest_first(const Key& key) const {
    Order order(blocks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return key(blocks_[i]); });
    return order;
  }

  [[nodiscard]] double life(const Block& block) const {
    return static_cast<double>(std::min(block.freed, end_) - block.made);
  }

  // What ends highest in the best plan, or did not fit into less, goes to the front of the order.
  void press_down() {
    Order order = best_order_;
    for (int in_vain = 0; in_vain < kMostInVain && !is_done(); ++in_vain) {
      const auto at = std::ranges::find(order, stopped_at_ ? *stopped_at_ : highest());
      if (at == order.begin()) return;  // it is the first, and still too high
      const auto to = order.begin() + (at - order.begin()) / 2;
      std::rotate(to, at, at + 1);
      const std::uint64_t before = best_.bytes;
      attempt(order);
      if (best_.bytes < before) in_vain = 0;
    }
  }

  [[nodiscard]] OffsetPlan take() { return std::move(best_); }

 private:
  [[nodiscard]] std::size_t highest() const {
    const auto end_of = [&](std::size_t i) { return best_.offsets[i] + blocks_[i].bytes; };
    return std::ranges::max(best_order_, {}, end_of);
  }

  std::vector<Block> blocks_;
  Moment end_ = 0;  // of all
  OffsetPlan best_;
  Order best_order_;
  std::optional<std::size_t> stopped_at_;  // the block that did not fit below the best plan
  std::uint64_t work_ = 0;
};

}  // namespace

OffsetPlan plan_offsets(std::span<const Block> blocks) {
  if (blocks.empty()) return {};
  Search search(blocks);
  search.place_over_time();
  const auto bytes_of = [](const Block& block) { return static_cast<double>(block.bytes); };
  search.attempt(search.largest_first(bytes_of));
  search.attempt(search.largest_first([&](const Block& block) { return bytes_of(block) * search.life(block); }));
  search.attempt(search.largest_first([&](const Block& block) { return search.life(block); }));
  search.press_down();
  return search.take();
}

}  // namespace pianola::memory
