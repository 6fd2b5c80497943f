#include <pianola/graph/cuda/device_account.hpp>

#include <pianola/cuda/memory_account.hpp>
#include <pianola/graph/cuda/driver_watch.hpp>
#include <pianola/graph/cuda/pool_blocks.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

constexpr c10::MempoolId_t kNoPool = {0, 0};

DeviceMemory memory_now(c10::Device device) {
  const c10::cuda::CUDAGuard on_device(device);
  DeviceMemory memory;
  C10_CUDA_CHECK(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
  return memory;
}

std::uint64_t workspaces_of_pools(c10::Device device) {
  std::vector<ByteSpan> all, in_pools;
  const auto add = [](std::vector<ByteSpan>& to, const std::vector<ByteSpan>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (const std::shared_ptr<PoolState>& pool : living_pools()) {
    if (pool->device() != device) continue;
    add(all, pool->workspace_spans());
    add(in_pools, pool->segments());
  }
  return total_bytes(without(merged(std::move(all)), merged(std::move(in_pools))));
}

}  // namespace

void account_of_device(ProcessMemory& memory) {
  allocator::init(c10::cuda::device_count());
  for (const auto& segment : allocator::snapshot(kNoPool, /*include_traces=*/false).segments) {
    if (segment.device != memory.device.index()) continue;
    const auto& owner = segment.owner_private_pool_id;
    if (owner != kNoPool) {
      const bool is_ours = std::ranges::any_of(memory.pools, [&](const PoolMemory& pool) { return pool.id == owner; });
      if (!is_ours) memory.other_pools += segment.total_size;
      continue;
    }
    memory.tensors += segment.active_size;
    const std::size_t returnable = returnable_bytes(segment);
    memory.returnable += returnable;
    memory.pieces += segment.total_size - segment.active_size - returnable;
  }
  memory.workspaces = workspaces_of_pools(memory.device);
  memory.watched = WatchedDevices::of_this_process().found_on(memory.device);
  const DeviceMemory now = memory_now(memory.device);
  memory.used = now.total_bytes - now.free_bytes;
  memory.total = now.total_bytes;
}

std::int64_t used_outside_of_torch(c10::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const DeviceMemory now = memory_now(device);
  auto used = static_cast<std::int64_t>(now.total_bytes - now.free_bytes);
  used -= allocator::getDeviceStats(device.index()).reserved_bytes[kAll].current;
  for (const std::shared_ptr<PoolState>& pool : living_pools()) {
    if (pool->device() != device) continue;
    used -= static_cast<std::int64_t>(pool->graphs().executables().device);
    if (pool->is_asleep()) used += static_cast<std::int64_t>(pool->bytes());  // which torch counts all the same
  }
  return used;
}

}  // namespace pianola::graph
