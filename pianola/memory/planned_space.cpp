#include <pianola/memory/planned_space.hpp>

#include <algorithm>

namespace pianola::memory {
namespace {

// So many blocks of the plan may be missing one after the other.
constexpr std::size_t kMostSkipped = 64;

}  // namespace

PlannedSpace::PlannedSpace(std::span<const Block> blocks, const OffsetPlan& plan) : bytes_(plan.bytes) {
  places_.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    places_.push_back({.offset = plan.offsets[i], .bytes = in_whole_units(blocks[i].bytes)});
  }
  if (bytes_ != 0) free_.give_back({.address = 0, .bytes = bytes_});
}

const PlannedSpace::Place* PlannedSpace::next_of(std::uint64_t bytes) {
  const std::size_t end = std::min(places_.size(), next_ + kMostSkipped + 1);
  for (std::size_t i = next_; i < end; ++i) {
    if (places_[i].bytes != bytes) continue;
    next_ = i + 1;
    return &places_[i];
  }
  return nullptr;
}

std::optional<std::uint64_t> PlannedSpace::take(std::uint64_t bytes) {
  bytes = in_whole_units(bytes);
  const Place* const place = next_of(bytes);
  if (place == nullptr) return refuse(bytes);
  const auto [taken, is_new] = taken_.try_emplace(place->offset, bytes);  // before anything is taken: it may throw
  if (!is_new) return refuse(bytes);
  if (free_.take_at({.address = place->offset, .bytes = bytes})) return place->offset;
  taken_.erase(taken);
  return refuse(bytes);
}

std::nullopt_t PlannedSpace::refuse(std::uint64_t bytes) {
  ++refused_;
  refused_bytes_ += bytes;
  return std::nullopt;
}

void PlannedSpace::give_back(std::uint64_t offset) {
  const auto block = taken_.find(offset);
  if (block == taken_.end()) return;
  free_.give_back({.address = offset, .bytes = block->second});
  taken_.erase(block);
}

}  // namespace pianola::memory
