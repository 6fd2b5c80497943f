#include <pianola/graph/cuda/planned_region.hpp>

#include <pianola/memory/apart_plan.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

ByteSpan common_of(const ByteSpan& one, const ByteSpan& other) {
  return {.begin = std::max(one.begin, other.begin), .end = std::min(one.end, other.end)};
}

ByteSpan span_of(std::uintptr_t begin, const memory::Piece& piece) {
  return {.begin = begin + piece.address, .end = begin + piece.address + piece.bytes};
}

}  // namespace

// That live. Never destroyed: a static Graph may end after it.
class PlannedRegion::All {
 public:
  static All& instance() {
    static auto* const all = new All;
    return *all;
  }
  std::mutex mutex;
  std::vector<PlannedRegion*> regions;
};

std::mutex& PlannedRegion::mutex() { return All::instance().mutex; }

PlannedRegion::PlannedRegion(c10::DataPtr memory, std::size_t bytes) : PlannedRegion(memory.device()) {
  is_shared_ = false;
  const std::lock_guard lock(mutex());
  begin_ = reinterpret_cast<std::uintptr_t>(memory.get());
  segments_.push_back({.memory = std::move(memory), .span = {.begin = begin_, .end = begin_ + bytes}});
  space_.grow_to(bytes);
}

PlannedRegion::PlannedRegion(c10::Device device) : device_(device), is_shared_(true) {
  const std::lock_guard lock(mutex());
  All::instance().regions.push_back(this);
}

PlannedRegion::~PlannedRegion() {
  const std::lock_guard lock(mutex());
  std::erase(All::instance().regions, this);
}

// Torch hands out free memory of the pool, where it has as much, before it makes a segment: that is held back meanwhile. A segment that
// does not lie behind the last one, because the range has no addresses or an earlier one was lost, is the pool's.
std::optional<PlannedRegion::Segment> PlannedRegion::ask_for(std::size_t bytes) {
  const trace::OwnMemory own;  // the blocks in it are the recording's
  std::vector<c10::DataPtr> others;
  for (;;) {
    const SegmentsInRange in_range(range_);
    c10::DataPtr memory = allocator::get()->allocate(bytes);
    const std::optional<ByteSpan>& made = in_range.made();
    const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
    if (!made) {
      if (!is_in_mapped_segment(address)) return std::nullopt;  // torch does not ask for any now
      others.push_back(std::move(memory));
      continue;
    }
    const bool is_behind = segments_.empty() || made->begin == segments_.back().span.end;
    if (made->begin != address || !is_behind) return std::nullopt;
    return Segment{.memory = std::move(memory), .span = *made};
  }
}

bool PlannedRegion::grow_to(std::uint64_t bytes) {
  const std::uint64_t now = this->bytes();
  if (bytes <= now) return true;
  std::optional<Segment> segment = ask_for(memory::grown_region(now, bytes) - now);  // without the lock
  if (!segment) return false;
  const std::lock_guard lock(mutex());
  if (segments_.empty()) begin_ = segment->span.begin;
  segments_.push_back(*std::move(segment));
  space_.grow_to(segments_.back().span.end - begin_);
  return true;
}

class PlannedRegion::Reservation {
 public:
  Reservation(std::shared_ptr<PlannedRegion> region, std::span<const ByteSpan> used) : region_(std::move(region)) {
    const std::lock_guard lock(mutex());
    for (const memory::Piece& piece : region_->space_.free_pieces()) {
      const ByteSpan free = span_of(region_->begin_, piece);
      for (const ByteSpan& span : used) {
        const ByteSpan both = common_of(free, span);
        if (both.empty()) continue;
        const std::uint64_t offset = both.begin - region_->begin_;
        if (region_->space_.take({.address = offset, .bytes = memory::in_whole_units(both.size())}))
          offsets_.push_back(offset);
      }
    }
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() {
    const std::lock_guard lock(mutex());
    for (const std::uint64_t offset : offsets_) region_->space_.give_back(offset);
  }

 private:
  std::shared_ptr<PlannedRegion> region_;
  std::vector<std::uint64_t> offsets_;
};

std::shared_ptr<void> PlannedRegion::reserve(const std::shared_ptr<PlannedRegion>& region,
                                             std::span<const ByteSpan> used) {
  return std::make_shared<Reservation>(region, used);
}

std::uint64_t PlannedRegion::bytes() const {
  const std::lock_guard lock(mutex());
  return space_.bytes();
}

std::vector<memory::Piece> PlannedRegion::taken(Besides besides) const {
  const std::lock_guard lock(mutex());
  std::vector<memory::Piece> all = space_.taken();
  const auto add = [&](const PiecesOfRecordings& more) {
    for (const auto& [recording, pieces] : more) all.insert(all.end(), pieces.begin(), pieces.end());
  };
  add(whole_);
  if (besides.and_left) add(left_);
  return memory::united(all, pieces_of(besides.and_used));
}

void PlannedRegion::note_left(std::uint64_t recording, std::span<const ByteSpan> left) {
  const std::lock_guard lock(mutex());
  std::vector<memory::Piece> pieces = pieces_of(left);
  if (pieces.empty()) {
    left_.erase(recording);
  } else {
    left_[recording] = std::move(pieces);
  }
}

void PlannedRegion::keep_whole(std::uint64_t recording, std::span<const ByteSpan> allocated) {
  const std::lock_guard lock(mutex());
  whole_[recording] = pieces_of(allocated);
}

void PlannedRegion::forget(std::uint64_t recording) {
  const std::lock_guard lock(mutex());
  left_.erase(recording);
  whole_.erase(recording);
}

// Under the lock.
std::vector<memory::Piece> PlannedRegion::pieces_of(std::span<const ByteSpan> spans) const {
  const ByteSpan all = {.begin = begin_, .end = begin_ + space_.bytes()};
  std::vector<memory::Piece> pieces;
  for (const ByteSpan& span : spans) {
    const ByteSpan inside = common_of(all, span);
    if (!inside.empty()) pieces.push_back({.address = inside.begin - begin_, .bytes = inside.size()});
  }
  return pieces;
}

void PlannedRegion::record_stream(c10::cuda::CUDAStream stream) const {
  for (const Segment& segment : segments_) allocator::recordStream(segment.memory, stream);
}

std::vector<const c10::DataPtr*> PlannedRegion::memory_of(const ByteSpan& span) const {
  std::vector<const c10::DataPtr*> memory;
  for (const Segment& segment : segments_) {
    if (segment.span.overlaps(span)) memory.push_back(&segment.memory);
  }
  return memory;
}

std::optional<std::vector<ByteSpan>> PlannedRegion::held_in(const ByteSpan& span) {
  const std::lock_guard lock(mutex());
  for (const PlannedRegion* const region : All::instance().regions) {
    const auto begins_there = [&](const Segment& segment) { return segment.span.begin == span.begin; };
    if (std::ranges::none_of(region->segments_, begins_there)) continue;
    std::vector<ByteSpan> held;
    for (const memory::Piece& piece : region->space_.taken()) {
      const ByteSpan inside = common_of(span_of(region->begin_, piece), span);
      if (!inside.empty()) held.push_back(inside);
    }
    return held;
  }
  return std::nullopt;
}

std::vector<std::pair<c10::Device, ByteSpan>> PlannedRegion::gaps() {
  const std::lock_guard lock(mutex());
  std::vector<std::pair<c10::Device, ByteSpan>> gaps;
  for (const PlannedRegion* const region : All::instance().regions) {
    for (const memory::Piece& piece : region->space_.free_pieces()) {
      for (const Segment& segment : region->segments_) {
        const ByteSpan inside = common_of(span_of(region->begin_, piece), segment.span);
        if (!inside.empty()) gaps.emplace_back(region->device_, inside);
      }
    }
  }
  return gaps;
}

}  // namespace pianola::graph
