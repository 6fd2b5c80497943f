#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pianola {

/// A set of graph nodes that only grows: open addressing in one array, since it is asked once per captured node.
class NodeSet {
 public:
  /// Adds `node`, which is not null. @return  Whether it is new.
  bool insert(CUgraphNode node) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    CUgraphNode& slot = slot_of(node);
    if (slot == node) return false;
    slot = node;
    ++size_;
    return true;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void clear() noexcept {
    slots_.clear();
    size_ = 0;
  }

 private:
  // The slot that holds the node, or the empty one where it belongs.
  CUgraphNode& slot_of(CUgraphNode node) {
    const std::size_t mask = slots_.size() - 1;
    const auto hash = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(node)) * 0x9E3779B97F4A7C15U;
    std::size_t i = static_cast<std::size_t>(hash >> 32U) & mask;
    while (slots_[i] != nullptr && slots_[i] != node) i = (i + 1) & mask;
    return slots_[i];
  }

  void grow() {
    std::vector<CUgraphNode> old(slots_.empty() ? 256 : 2 * slots_.size());
    old.swap(slots_);
    for (CUgraphNode node : old) {
      if (node != nullptr) slot_of(node) = node;
    }
  }

  std::vector<CUgraphNode> slots_;  // A power of two of them, at least half of them empty.
  std::size_t size_ = 0;
};

}  // namespace pianola
