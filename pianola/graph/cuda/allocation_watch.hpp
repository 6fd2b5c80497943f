#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <cstddef>
#include <mutex>
#include <vector>

namespace pianola::graph {

/// Notes every block that torch's allocator hands out in one pool, or takes back, while it lives: results and scratch. May end on another thread than it began on.
class AllocationWatch final : private trace::AllocatorListener {
 public:
  /// @throws UnsupportedError  Torch runs with another allocator than its native one.
  explicit AllocationWatch(c10::MempoolId_t pool);

  /// Blocks that were handed out, in order, from the one with this number on.
  [[nodiscard]] std::vector<ByteSpan> allocated_since(std::size_t number) const;
  [[nodiscard]] std::size_t allocated() const;
  /// The same of blocks that can be used again: freed, and no stream has work on them.
  [[nodiscard]] std::vector<ByteSpan> freed_since(std::size_t number) const;
  [[nodiscard]] std::size_t freed() const;

  /// All that were handed out; the watch is empty then.
  [[nodiscard]] std::vector<ByteSpan> take();

 private:
  void on_memory(const trace::AllocatorEvent& event) override;

  c10::MempoolId_t pool_;
  mutable std::mutex mutex_;  // taken under the allocator's lock, or without it
  std::vector<ByteSpan> allocated_;
  std::vector<ByteSpan> freed_;
  trace::AllocatorWatch watch_;  // behind what it writes
};

}  // namespace pianola::graph
