#include <pianola/memory/allocator_model.hpp>

#include <pianola/memory/free_pieces.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <queue>
#include <vector>

namespace pianola::memory {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMostSmall = kMiB, kLeastLarge = 10 * kMiB;
constexpr SegmentBytes kSegment = {2 * kMiB, 20 * kMiB, 2 * kMiB};
constexpr std::size_t kFirstRange =
    21;  // of AllocatorSettings::roundup_divisions: that of sizes with so many bits, and of smaller ones

constexpr std::uint64_t in_whole(std::uint64_t unit, std::uint64_t bytes) { return (bytes + unit - 1) / unit * unit; }

constexpr std::size_t kind_of(std::uint64_t bytes) {
  if (bytes <= kMostSmall) return 0;
  return bytes < kLeastLarge ? 1 : 2;
}

// Those of small blocks, or those of large ones.
class Segments {
 public:
  Segments(const AllocatorSettings& settings, bool are_large)
      : settings_(settings),
        page_(settings.kind == SegmentKind::fixed ? 0
              : are_large                         ? settings.large_segment
                                                  : expandable_page(/*is_large=*/false)),
        least_rest_(are_large && page_ == 0 ? kMostSmall + kBlockUnit : kBlockUnit) {}

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  Piece take(std::uint64_t bytes) {
    const Piece piece = page_ == 0 ? of_any_segment(bytes) : of_the_one(bytes);
    const std::uint64_t rest = piece.bytes - bytes;
    const bool is_whole = page_ == 0 && bytes >= settings_.max_split;
    if (rest < least_rest_ || is_whole) return piece;
    free_.give_back({.address = piece.address + bytes, .bytes = rest});
    return {.address = piece.address, .bytes = bytes};
  }
  void give_back(Piece piece) { free_.give_back(piece); }

 private:
  // Torch looks at the smallest alone.
  std::optional<Piece> take_free(std::uint64_t bytes) {
    const std::optional<Piece> piece = free_.take_smallest(bytes);
    if (!piece) return std::nullopt;
    const bool is_oversize = bytes >= settings_.max_split;
    const bool may_have_it =
        is_oversize ? piece->bytes - bytes < settings_.max_non_split_rounding : piece->bytes < settings_.max_split;
    if (may_have_it) return piece;
    free_.give_back(*piece);
    return std::nullopt;
  }

  Piece of_any_segment(std::uint64_t bytes) {
    const std::optional<Piece> free = take_free(bytes);
    if (free) return *free;
    const bool is_shared = kind_of(bytes) == 1;
    return new_segment(is_shared ? settings_.large_segment : in_whole(kSegment[kind_of(bytes)], bytes));
  }

  // What can grow is taken last, and counts as the largest.
  Piece of_the_one(std::uint64_t bytes) {
    Piece last = free_.take_before(end_).value_or(Piece{.address = end_, .bytes = 0});
    if (const std::optional<Piece> free = take_free(bytes)) {
      if (last.bytes != 0) free_.give_back(last);
      return *free;
    }
    if (last.bytes < bytes) {
      const std::uint64_t more = in_whole(page_, bytes - last.bytes);
      last.bytes += more;
      bytes_ += more;
      end_ += more;
    }
    return last;
  }

  Piece new_segment(std::uint64_t bytes) {
    const Piece segment = {.address = end_, .bytes = bytes};
    bytes_ += bytes;
    end_ += bytes + kBlockUnit;  // a gap, so that pieces of two segments are no neighbours
    return segment;
  }

  const AllocatorSettings& settings_;
  std::uint64_t page_ = 0;  // 0: the segments are fixed
  std::uint64_t least_rest_ = 0;
  std::uint64_t bytes_ = 0, end_ = 0;
  FreePieces free_;
};

struct Use {
  Moment freed = 0;
  Segments* segments = nullptr;
  Piece piece;
  bool operator>(const Use& other) const { return freed > other.freed; }
};

std::vector<Block> of_kind(std::span<const Block> blocks, std::size_t kind) {
  std::vector<Block> chosen;
  std::ranges::copy_if(blocks, std::back_inserter(chosen),
                       [&](const Block& block) { return kind_of(block.bytes) == kind; });
  return chosen;
}

}  // namespace

std::uint64_t rounded_request(std::uint64_t bytes, const AllocatorSettings& settings) {
  const std::uint64_t wanted = std::max<std::uint64_t>(bytes, 1);
  const std::uint64_t floor = std::bit_floor(wanted);
  const std::size_t range = std::max<std::size_t>(std::bit_width(wanted), kFirstRange) - kFirstRange;
  const std::uint64_t divisions = settings.roundup_divisions[std::min(range, settings.roundup_divisions.size() - 1)];
  if (divisions <= 1 || wanted <= kBlockUnit * divisions) return in_whole_units(bytes);
  return in_whole(floor / std::bit_floor(divisions), wanted);
}

std::uint64_t pool_bytes(std::span<const Block> blocks, const AllocatorSettings& settings) {
  Segments small(settings, /*are_large=*/false), large(settings, /*are_large=*/true);
  std::priority_queue<Use, std::vector<Use>, std::greater<>> uses;  // what is freed next is the first
  for (const Block& block : blocks) {
    for (; !uses.empty() && uses.top().freed <= block.made; uses.pop()) {
      uses.top().segments->give_back(uses.top().piece);
    }
    const std::uint64_t bytes = rounded_request(block.bytes, settings);
    Segments& segments = bytes <= kMostSmall ? small : large;
    uses.push({.freed = block.freed, .segments = &segments, .piece = segments.take(bytes)});
  }
  return small.bytes() + large.bytes();
}

SegmentBytes peak_by_segment(std::span<const Block> blocks) {
  SegmentBytes peak = {};
  for (std::size_t i = 0; i < peak.size(); ++i) peak[i] = peak_bytes(of_kind(blocks, i));
  return peak;
}

SegmentBytes sum_by_segment(std::span<const Block> blocks) {
  SegmentBytes sum = {};
  for (const Block& block : blocks) sum[kind_of(block.bytes)] += block.bytes;
  return sum;
}

std::uint64_t in_whole_segments(const SegmentBytes& bytes) {
  std::uint64_t pool = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) pool += in_whole(kSegment[i], bytes[i]);
  return pool;
}

}  // namespace pianola::memory
