#pragma once
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace pianola::testing {

/// While it lives, torch may allocate `spare` bytes more on the first GPU than it holds already.
class NoMoreMemory {
 public:
  explicit NoMoreMemory(std::size_t spare = std::size_t{24} << 20U) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    const double held = static_cast<double>(stats.reserved_bytes[0].current) + static_cast<double>(spare);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(held / static_cast<double>(total), 0);
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;
  ~NoMoreMemory() { c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, 0); }
};

}  // namespace pianola::testing
