#include <pianola/graph/cuda/allocation_watch.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace pianola::graph {
namespace {

using c10::CachingDeviceAllocator::TraceEntry;

std::atomic<int> open_watches{0};

}  // namespace

// The hook runs under the allocator's lock, so this one is only ever taken inside it or without it.
static std::mutex& watches_mutex() {
  static std::mutex mutex;
  return mutex;
}

static std::vector<std::pair<c10::MempoolId_t, std::vector<ByteSpan>*>>& watches() {
  static std::vector<std::pair<c10::MempoolId_t, std::vector<ByteSpan>*>> all;
  return all;
}

void AllocationWatch::attach_once() {
  static std::once_flag attached;
  std::call_once(attached, [] {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
      if (open_watches.load(std::memory_order_relaxed) == 0 || entry.action_ != TraceEntry::ALLOC) return;
      const std::lock_guard lock(watches_mutex());
      for (const auto& [pool, blocks] : watches()) {
        if (pool == entry.mempool_) blocks->push_back({.begin = entry.addr_, .end = entry.addr_ + entry.size_});
      }
    });
  });
}

AllocationWatch::AllocationWatch(c10::MempoolId_t pool) : pool_(pool) {
  attach_once();
  const std::lock_guard lock(watches_mutex());
  watches().emplace_back(pool_, &blocks_);
  ++open_watches;
}

AllocationWatch::~AllocationWatch() {
  const std::lock_guard lock(watches_mutex());
  std::erase_if(watches(), [&](const auto& entry) { return entry.second == &blocks_; });
  --open_watches;
}

std::vector<ByteSpan> AllocationWatch::take() {
  const std::lock_guard lock(watches_mutex());
  return std::move(blocks_);
}

}  // namespace pianola::graph
