#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

namespace pianola::graph {

/// While it lives, what torch's allocator is asked for goes to the pool, where `wanted` says so: it is called on the thread that asks,
/// with the stream, under the allocator's lock.
class IntoPool {
 public:
  IntoPool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(cudaStream_t)> wanted)
      : device_(device), pool_(pool) {
    try {
      c10::cuda::CUDACachingAllocator::beginAllocateToPool(device, pool, std::move(wanted));
    } catch (...) {  // somebody records into the pool; torch has counted the use all the same
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
      throw;
    }
  }
  IntoPool(const IntoPool&) = delete;
  IntoPool& operator=(const IntoPool&) = delete;
  ~IntoPool() {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);  // beginning counted as a use
  }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

}  // namespace pianola::graph
