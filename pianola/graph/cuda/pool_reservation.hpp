#pragma once
#include <pianola/graph/ledger.hpp>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <vector>

namespace pianola::graph {

// Note [Scratch that must not become a result]
// What a capture frees is scratch of its graph: each replay writes there. If a later capture puts a result into those
// bytes, that result is gone after the next replay of the earlier graph. That is harmless where graphs are replayed in
// the order of their capture, and wrong where a step is replayed again while results of another one are still needed,
// as microbatches in flight are. So the scratch is allocated while such results are captured; later scratch may use it.
// The whole rule is Note [What a capture keeps clear of] in pool_clearance.hpp.

// Note [How a free block is asked for]
// Torch's allocator gives the smallest free block that is large enough, which may be another one. So all free blocks of the pool are asked
// for, the largest first and each by its exact size: each request finds a block of that size. Then there is no choice any more, and the
// used part of a block is what it alone can give when it has been given back. Blocks that nobody used go back at the end.

/// Holds the free bytes of a pool that captures have used. Untouched memory stays available.
class PoolReservation {
 public:
  /// @throws UnsupportedError  Some of these bytes cannot be had: torch's allocator rounds sizes up (roundup_power2_divisions), say.
  PoolReservation(c10::DeviceIndex device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used);
  PoolReservation(const PoolReservation&) = delete;
  PoolReservation& operator=(const PoolReservation&) = delete;
  ~PoolReservation();

 private:
  /// @return  Whether all of it could be had.
  bool hold(c10::Device device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used);
  void give_back() noexcept;

  std::vector<void*> held_;
};

}  // namespace pianola::graph
