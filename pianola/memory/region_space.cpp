#include <pianola/memory/region_space.hpp>

namespace pianola::memory {

bool RegionSpace::take(Piece block) {
  const auto [taken, is_new] = taken_.try_emplace(block.address, block.bytes);  // before anything is: it may throw
  if (!is_new) return false;
  if (free_.take_at(block)) return true;
  taken_.erase(taken);
  return false;
}

void RegionSpace::give_back(std::uint64_t offset) {
  const auto block = taken_.find(offset);
  if (block == taken_.end()) return;
  free_.give_back({.address = offset, .bytes = block->second});
  taken_.erase(block);
}

void RegionSpace::grow_to(std::uint64_t bytes) {
  if (bytes <= bytes_) return;
  free_.give_back({.address = bytes_, .bytes = bytes - bytes_});
  bytes_ = bytes;
}

std::vector<Piece> RegionSpace::taken() const {
  std::vector<Piece> all;
  all.reserve(taken_.size());
  for (const auto& [offset, bytes] : taken_) all.push_back({.address = offset, .bytes = bytes});
  return all;
}

}  // namespace pianola::memory
