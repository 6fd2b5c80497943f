#include <pianola/graph/cuda/free_memory.hpp>

#include <pianola/graph/cuda/pool_blocks.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace pianola::graph {
namespace {

constexpr c10::MempoolId_t kOutsideOfPools = {0, 0};

}  // namespace

memory::FreeMemory free_memory_of(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard on_device(device);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  const std::int64_t reserved = stats.reserved_bytes[kAll].current;
  const double most = c10::cuda::CUDACachingAllocator::getMemoryFraction(device) * static_cast<double>(total);
  const std::int64_t allowed = std::max<std::int64_t>(static_cast<std::int64_t>(most) - reserved, 0);
  memory::FreeMemory result{.of_driver = std::min(free, static_cast<std::size_t>(allowed))};
  for (const auto& segment :
       c10::cuda::CUDACachingAllocator::snapshot(kOutsideOfPools, /*include_traces=*/false).segments) {
    if (segment.device != device || segment.owner_private_pool_id != kOutsideOfPools) continue;
    result.cached += segment.total_size - segment.active_size;
    result.returnable += returnable_bytes(segment);
  }
  return result;
}

// Most captures find enough, and look at no segments.
void make_room_for_a_pool(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard on_device(device);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  const std::int64_t unused = stats.reserved_bytes[kAll].current - stats.active_bytes[kAll].current;
  std::size_t free = 0, total = 0;
  const double fraction = c10::cuda::CUDACachingAllocator::getMemoryFraction(device);
  const bool is_limited = fraction < 1;
  if (!is_limited && cudaMemGetInfo(&free, &total) == cudaSuccess && static_cast<std::int64_t>(free) >= unused) return;
  const memory::FreeMemory now = free_memory_of(device);
  if (now.of_driver < now.returnable) c10::cuda::CUDACachingAllocator::emptyCache();
}

std::size_t free_memory(c10::DeviceIndex device) {
  const memory::FreeMemory free = free_memory_of(device);
  return free.of_driver + free.cached;
}

}  // namespace pianola::graph
