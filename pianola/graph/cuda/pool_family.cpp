#include <pianola/graph/cuda/pool_family.hpp>

#include <pianola/torch_abi/cuda/workspace_size.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <tuple>
#include <utility>

namespace pianola::graph {

CudaPoolFamily::Recording::Recording(CudaPoolFamily& family, cudaStream_t stream) : family_(family), stream_(stream) {
  const std::lock_guard lock(family_.mutex_);
  lend(at::cuda::cublas_handle_stream_to_workspace(), stream, torch_abi::gemm_workspace_bytes(), family_.gemm_);
  lend(at::cuda::cublaslt_handle_stream_to_workspace(), stream, at::cuda::getCUDABlasLtWorkspaceSize(), family_.lt_);
}

CudaPoolFamily::Recording::~Recording() {
  const std::lock_guard lock(family_.mutex_);
  take_out(at::cuda::cublas_handle_stream_to_workspace(), stream_, family_.gemm_);
  take_out(at::cuda::cublaslt_handle_stream_to_workspace(), stream_, family_.lt_);
}

// What the warm-up made is the family's from now on, where it has none for that handle, and else is freed. Handles that it has not
// used may be used in the recording.
void CudaPoolFamily::lend(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream, std::size_t bytes,
                          ByHandle& own) {
  const std::unique_lock lock(table.mutex);
  for (auto& [key, workspace] : table.map) {
    if (std::get<1>(key) != static_cast<void*>(stream)) continue;
    at::DataPtr& made = torch_abi::memory_of(workspace);
    const std::size_t size = torch_abi::bytes_of(workspace, bytes);
    const c10::Device device = made.device();
    const auto entry = own.try_emplace(std::get<0>(key), std::move(made)).first;
    workspace = torch_abi::make_workspace({entry->second.get(), device}, size);
  }
  for (const auto& [handle, memory] : own) {
    table.map.try_emplace({handle, static_cast<void*>(stream)},
                          torch_abi::make_workspace({memory.get(), memory.device()}, bytes));
  }
}

// What torch made meanwhile, for a handle that no warm-up has used, is the family's as well.
void CudaPoolFamily::take_out(at::cuda::WorkspaceMapWithMutex& table, cudaStream_t stream, ByHandle& own) {
  const std::unique_lock lock(table.mutex);
  for (auto entry = table.map.begin(); entry != table.map.end();) {
    const auto here = entry++;
    if (std::get<1>(here->first) != static_cast<void*>(stream)) continue;
    at::DataPtr& memory = torch_abi::memory_of(here->second);
    const auto [lent, is_new] = own.try_emplace(std::get<0>(here->first), std::move(memory));
    if (is_new || lent->second.get() == memory.get()) table.map.erase(here);
  }
}

std::vector<ByteSpan> CudaPoolFamily::spans() {
  std::vector<ByteSpan> spans = colours_.spans();
  const std::lock_guard lock(mutex_);
  const auto add = [&](const ByHandle& all, std::size_t bytes) {
    for (const auto& [handle, memory] : all) {
      const auto begin = reinterpret_cast<std::uintptr_t>(memory.get());
      spans.push_back({.begin = begin, .end = begin + bytes});
    }
  };
  add(gemm_, torch_abi::gemm_workspace_bytes());
  add(lt_, at::cuda::getCUDABlasLtWorkspaceSize());
  return spans;
}

void CudaPoolFamily::record_stream(c10::cuda::CUDAStream stream) {
  const std::lock_guard lock(mutex_);
  for (const ByHandle* all : {&gemm_, &lt_}) {
    for (const auto& [handle, memory] : *all) c10::cuda::CUDACachingAllocator::recordStream(memory, stream);
  }
  colours_.record_stream(stream);
}

}  // namespace pianola::graph
