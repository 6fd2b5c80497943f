#include <pianola/graph/account/memory_left.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/free_memory.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace pianola {

std::optional<memory::FreeMemory> memory_left([[maybe_unused]] c10::Device device) {
#if PIANOLA_WITH_CUDA
  if (device.is_cuda() && c10::cuda::CUDACachingAllocator::get()->initialized()) {
    return graph::free_memory_of(device.index());
  }
#endif
  return std::nullopt;
}

}  // namespace pianola
