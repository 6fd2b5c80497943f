#include <pianola/graph/cuda/cuda_pool.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

CudaPool::CudaPool(c10::Device device)
    : PoolState(device),
      id_(at::cuda::graph_pool_handle()),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
  allocator::init(c10::cuda::device_count());
  // A use of our own: the pool must live between its graphs, also when the last one is gone.
  allocator::createOrIncrefPool(device.index(), id_);
}

CudaPool::~CudaPool() {
  workspaces_ = {};  // some may have been made in the pool
  try {
    allocator::releasePool(device().index(), id_);
    if (return_memory_) allocator::emptyCache(id_);
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: a graph pool's memory could not be returned: ", error.what());
  }
}

std::size_t CudaPool::bytes() const {
  std::size_t bytes = 0;
  for (const auto& segment : allocator::snapshot(id_, /*include_traces=*/false).segments) {
    bytes += static_cast<std::size_t>(segment.total_size);
  }
  return bytes;
}

}  // namespace pianola::graph
