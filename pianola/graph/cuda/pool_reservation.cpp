#include <pianola/graph/cuda/pool_reservation.hpp>

#include <pianola/graph/cuda/into_pool.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

// torch serves requests up to this from other segments than larger ones (kSmallSize in its allocator).
constexpr std::size_t kSmallRequest = 1048576;
constexpr std::size_t kSmallestLargeRequest = kSmallRequest + 512;

struct Wanted {
  std::uintptr_t begin;
  std::size_t bytes;  // from the begin of a free block to the last byte that was used
  cudaStream_t stream;
};

std::uintptr_t last_used(const std::vector<ByteSpan>& used, std::uintptr_t begin, std::uintptr_t end) {
  std::uintptr_t last = 0;
  for (const ByteSpan& span : used) {
    if (span.begin < end && begin < span.end) last = std::max(last, std::min(span.end, end));
  }
  return last;
}

std::vector<Wanted> find_used_blocks(c10::MempoolId_t pool, const std::vector<ByteSpan>& used) {
  std::vector<Wanted> result;
  for (const auto& segment : allocator::snapshot(pool, /*include_traces=*/false).segments) {
    std::uintptr_t begin = segment.address;
    for (const auto& block : segment.blocks) {
      const std::uintptr_t end = begin + block.size;
      const std::uintptr_t last = block.active ? 0 : last_used(used, begin, end);
      std::size_t bytes = last == 0 ? 0 : last - begin;
      // A smaller rest of a large segment serves no request at all.
      if (segment.is_large && bytes != 0)
        bytes = block.size < kSmallestLargeRequest ? 0 : std::max(bytes, kSmallestLargeRequest);
      if (bytes != 0) result.push_back({begin, bytes, static_cast<cudaStream_t>(segment.stream)});
      begin = end;
    }
  }
  return result;
}

// The allocator takes the smallest free block that is large enough, so others of about that size may come first.
void* allocate_at(const Wanted& wanted, std::size_t tries) {
  std::vector<void*> others;
  void* found = nullptr;
  while (found == nullptr && tries-- > 0) {
    void* memory = allocator::raw_alloc_with_stream(wanted.bytes, wanted.stream);
    if (reinterpret_cast<std::uintptr_t>(memory) == wanted.begin) {
      found = memory;
    } else {
      others.push_back(memory);
    }
  }
  for (void* memory : others) allocator::raw_delete(memory);
  return found;
}

}  // namespace

PoolReservation::PoolReservation(c10::DeviceIndex device, c10::MempoolId_t pool, const std::vector<ByteSpan>& used) {
  const c10::cuda::CUDAGuard on_device(device);
  std::vector<Wanted> wanted = find_used_blocks(pool, used);
  // Large ones first: what they leave over is no candidate for the smaller ones then.
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.bytes > b.bytes; });
  for (const Wanted& block : wanted) {
    const IntoPool into_pool(device, pool, [stream = block.stream](cudaStream_t of) { return of == stream; });
    if (void* memory = allocate_at(block, wanted.size() + 1)) held_.push_back(memory);
  }
}

PoolReservation::~PoolReservation() {
  for (void* memory : held_) allocator::raw_delete(memory);
}

}  // namespace pianola::graph
