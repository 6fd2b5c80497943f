#include <pianola/graph/cuda/retained_memory.hpp>

#include <pianola/graph/input_keeper.hpp>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace pianola::graph {

std::size_t RetainedMemory::bytes() const { return bytes_of(storages_); }

void RetainedMemory::let_go_behind(std::span<const c10::cuda::CUDAStream> streams) {
  for (const c10::cuda::CUDAStream& stream : streams) {
    for (const c10::Storage& storage : storages_) {
      c10::cuda::CUDACachingAllocator::recordStream(storage.data_ptr(), stream);
    }
    for (const at::Tensor& tensor : pinned_) {
      at::getHostAllocator(at::kCUDA)->record_event(tensor.mutable_data_ptr(),
                                                    tensor.storage().data_ptr().get_context(), stream.unwrap());
    }
  }
  storages_.clear();
  pinned_.clear();
}

}  // namespace pianola::graph
