#pragma once
#include <pianola/graph/ledger.hpp>

#include <c10/core/CachingDeviceAllocator.h>

#include <vector>

namespace pianola::graph {

/// Notes every block that torch's allocator hands out in one pool while it lives: results and scratch.
///
/// torch's hook cannot be taken out again; it is put in by the first capture and returns at once while none is open.
class AllocationWatch {
 public:
  explicit AllocationWatch(c10::MempoolId_t pool);
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;
  ~AllocationWatch();

  [[nodiscard]] std::vector<ByteSpan> take();

 private:
  static void attach_once();

  c10::MempoolId_t pool_;
  std::vector<ByteSpan> blocks_;
};

}  // namespace pianola::graph
