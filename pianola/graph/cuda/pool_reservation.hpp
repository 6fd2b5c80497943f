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

/// Holds the free bytes of a pool that captures have used. Untouched memory stays available.
class PoolReservation {
 public:
  PoolReservation(c10::DeviceIndex device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used);
  PoolReservation(const PoolReservation&) = delete;
  PoolReservation& operator=(const PoolReservation&) = delete;
  ~PoolReservation();

 private:
  std::vector<void*> held_;
};

}  // namespace pianola::graph
