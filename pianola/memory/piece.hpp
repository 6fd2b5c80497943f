#pragma once
#include <cstdint>

namespace pianola::memory {

/// Bytes of a region of memory.
struct Piece {
  std::uint64_t address = 0;  ///< In a region: its offset.
  std::uint64_t bytes = 0;
};

}  // namespace pianola::memory
