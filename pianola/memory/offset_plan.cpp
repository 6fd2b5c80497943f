#include <pianola/memory/offset_plan.hpp>

#include <pianola/memory/free_pieces.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
  std::size_t block;  // kTaken: none of those that are placed
};
constexpr std::size_t kTaken = std::numeric_limits<std::size_t>::max();

// What was placed so far, by address.
class Region {
 public:
  Region(std::span<const Block> blocks, const Interference& interference, std::size_t taken)
      : blocks_(blocks), interference_(interference) {
    placed_.reserve(blocks.size() + taken);
  }

  void hold(const Placed& one) {
    placed_.insert(std::ranges::upper_bound(placed_, one.begin, {}, &Placed::begin), one);
  }

  // In the smallest gap that holds the block; kNoLimit if it would end behind `limit`.
  std::uint64_t place(std::size_t number, std::uint64_t limit) {
    const Block& block = blocks_[number];
    const std::uint64_t bytes = block.bytes;
    std::uint64_t top = 0, best = kNoLimit, smallest = kNoLimit;
    for (const Placed& one : placed_) {
      const bool meets = one.made < block.freed && one.freed > block.made;
      if (!meets && !interference_.has(number, one.block)) continue;
      if (one.begin > top && one.begin - top >= bytes && one.begin - top < smallest) {
        smallest = one.begin - top;
        best = top;
        if (smallest == bytes) break;
      }
      top = std::max(top, one.end);
    }
    if (best == kNoLimit) best = top;
    if (best + bytes > limit) return kNoLimit;
    hold({.made = block.made, .freed = block.freed, .begin = best, .end = best + bytes, .block = number});
    return best;
  }

 private:
  std::span<const Block> blocks_;  // whose lives end behind their begins, of whole units
  const Interference& interference_;
  std::vector<Placed> placed_;
};

// The lowest end of a region with so many bytes that are not taken.
std::uint64_t end_of_free(std::uint64_t bytes, std::vector<Piece> taken) {
  std::ranges::sort(taken, {}, &Piece::address);
  std::uint64_t end = bytes;
  for (const Piece& piece : taken) {
    if (piece.address >= end) break;
    end += piece.bytes;
  }
  return end;
}

// Where blocks that are never freed may lie: they come first in all orders, or as any other.
enum class Kept : std::uint8_t { low, anywhere };

// The blocks, and the best plan so far.
class Search {
 public:
  Search(std::span<const Block> blocks, std::span<const Piece> taken, const Interference& interference, Kept kept)
      : blocks_(blocks.begin(), blocks.end()),
        taken_(taken.begin(), taken.end()),
        interference_(interference),
        kept_(kept) {
    for (Block& block : blocks_) {
      block.freed = std::max(block.freed, block.made + 1);
      block.bytes = in_whole_units(block.bytes);
      if (block.freed != Block::kNever) end_ = std::max(end_, block.freed);
      end_ = std::max(end_, block.made + 1);
    }
    best_.bound = end_of_free(least_bytes(blocks_, interference_), taken_);
    if (kept_ == Kept::low) {
      first_ = static_cast<std::size_t>(std::ranges::count(blocks_, Block::kNever, &Block::freed));
    }
  }

  [[nodiscard]] bool has_plan() const { return best_.bytes != kNoLimit; }
  [[nodiscard]] bool is_done() const { return best_.bytes == best_.bound || work_ > kMostWork; }

  // Keeps the plan if it is better.
  void attempt(const Order& order) { attempt(order, kMostWork); }

  void attempt(const Order& order, std::uint64_t most_work) {
    if (is_done()) return;
    Region region(blocks_, interference_, taken_.size());
    for (const Piece& piece : taken_) {
      region.hold({.made = std::numeric_limits<Moment>::min(),
                   .freed = Block::kNever,
                   .begin = piece.address,
                   .end = piece.address + piece.bytes,
                   .block = kTaken});
    }
    std::vector<std::uint64_t> offsets(blocks_.size());
    std::uint64_t bytes = 0;
    const std::uint64_t limit = best_.bytes - kBlockUnit;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Block& block = blocks_[order[i]];
      work_ += i + taken_.size();
      if (work_ > most_work) return;
      offsets[order[i]] = region.place(order[i], limit);
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
    // A hole is none for every block. One plan there has to be, whatever it costs.
    if (!interference_.empty()) return attempt(order, /*most_work=*/kNoLimit);
    FreePieces free;
    free.give_back({.address = 0, .bytes = kNoLimit});
    for (const Piece& piece : taken_) free.take_at(piece);
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
    if (kept_ == Kept::low) {
      std::ranges::stable_partition(order, [&](std::size_t i) { return blocks_[i].freed == Block::kNever; });
    }
    return order;
  }

  [[nodiscard]] double life(const Block& block) const {
    return static_cast<double>(std::min(block.freed, end_) - block.made);
  }

  // What ends highest in the best plan, or did not fit into less, goes to the front of the order.
  void press_down() {
    Order order = best_order_;
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(first_);
    for (int in_vain = 0; in_vain < kMostInVain && !is_done(); ++in_vain) {
      const auto at = std::ranges::find(order, stopped_at_ ? *stopped_at_ : highest());
      if (at <= first) return;  // it is the first, and still too high
      const auto to = first + (at - first) / 2;
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
  std::vector<Piece> taken_;
  const Interference& interference_;
  Kept kept_;
  std::size_t first_ = 0;  // of each order, that stay there
  Moment end_ = 0;         // of all
  OffsetPlan best_ = {.offsets = {}, .bytes = kNoLimit, .bound = 0};
  Order best_order_;
  std::optional<std::size_t> stopped_at_;  // the block that did not fit below the best plan
  std::uint64_t work_ = 0;
};

void try_orders(Search& search) {
  const auto bytes_of = [](const Block& block) { return static_cast<double>(block.bytes); };
  search.attempt(search.largest_first(bytes_of));
  search.attempt(search.largest_first([&](const Block& block) { return bytes_of(block) * search.life(block); }));
  search.attempt(search.largest_first([&](const Block& block) { return search.life(block); }));
  if (search.has_plan()) search.press_down();
}

OffsetPlan plan_anywhere(std::span<const Block> blocks, std::span<const Piece> taken,
                         const Interference& interference) {
  Search search(blocks, taken, interference, Kept::anywhere);
  search.place_over_time();
  try_orders(search);
  return search.take();
}

constexpr std::uint64_t with_a_little_more(std::uint64_t bytes) { return bytes + bytes / 50; }

}  // namespace

OffsetPlan plan_offsets(std::span<const Block> blocks, const Interference& interference) {
  if (blocks.empty()) return {};
  return plan_anywhere(blocks, {}, interference);
}

OffsetPlan plan_offsets(std::span<const Block> blocks, std::span<const Piece> taken, const Interference& interference) {
  if (blocks.empty()) return {};
  Search search(blocks, taken, interference, Kept::low);
  try_orders(search);
  const bool found_any = search.has_plan();
  OffsetPlan low = search.take();
  if (found_any && low.bytes <= with_a_little_more(low.bound)) return low;
  OffsetPlan anywhere = plan_anywhere(blocks, taken, interference);
  return found_any && low.bytes <= with_a_little_more(anywhere.bytes) ? low : anywhere;
}

}  // namespace pianola::memory
