#pragma once
#include <pianola/core/export.hpp>
#include <pianola/memory/free_pieces.hpp>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace pianola::memory {

/// What a region has that grows to hold `wanted` bytes: a segment of torch's allocator more, which is a block by itself from 10 MiB on, in
/// steps of 2. Source: kMinLargeAlloc and kRoundLarge of c10/cuda/CUDACachingAllocator.cpp, torch 2.11.
[[nodiscard]] constexpr std::uint64_t grown_region(std::uint64_t now, std::uint64_t wanted) {
  constexpr std::uint64_t kStep = std::uint64_t{2} << 20U, kLeast = 5 * kStep;
  if (wanted <= now) return now;
  const std::uint64_t more = (wanted - now + kStep - 1) / kStep * kStep;
  return now + (more < kLeast ? kLeast : more);
}

/// The bytes of a region that several plans lay blocks in: which of them a block has, of whatever plan, and which none has.
class PIANOLA_API RegionSpace {
 public:
  /// For a block; false: not all of these bytes are free. Cost: log n.
  bool take(Piece block);
  /// The block at this offset is gone. Nothing where there is none.
  void give_back(std::uint64_t offset);
  /// Behind its end. Nothing where it is as large.
  void grow_to(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// What no block has.
  [[nodiscard]] std::vector<Piece> free_pieces() const { return free_.all(); }
  /// What blocks have, in any order.
  [[nodiscard]] std::vector<Piece> taken() const;

 private:
  std::uint64_t bytes_ = 0;
  FreePieces free_;
  std::unordered_map<std::uint64_t, std::uint64_t> taken_;  // bytes, by offset
};

}  // namespace pianola::memory
