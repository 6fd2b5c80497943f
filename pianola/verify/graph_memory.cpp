#include <pianola/verify/graph_memory.hpp>

#include <pianola/graph/tape/tape.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/verify/bits.hpp>
#include <pianola/verify/devices.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/planned_region.hpp>
#include <pianola/graph/cuda/sleeping_segments.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <algorithm>

namespace pianola::verification {
namespace {

#if PIANOLA_WITH_CUDA

// Note [Memory that is free in a graph's pool]
// A block of a private pool that is not active belongs to no tensor: only graphs that were captured while it did read or
// write it, and each replay writes before it reads. What is carried over from one replay to the next has a tensor that
// holds it, or it would be given to the next capture. What a plan laid out tells its gaps itself, and a pool that sleeps has no memory. The default pool's id is (0, 0) (torch 2.11,
// SegmentInfo::owner_private_pool_id).
void read_pools(std::vector<Stretch>& pools, std::vector<Stretch>& free) {
  const auto snapshot = c10::cuda::CUDACachingAllocator::snapshot({0, 0}, /*include_traces=*/false);
  std::vector<ByteSpan> asleep;
  for (const auto& segment : snapshot.segments) {
    if (segment.owner_private_pool_id == c10::MempoolId_t{0, 0}) continue;
    if (graph::is_segment_asleep(segment.address)) {
      asleep.push_back({.begin = segment.address, .end = segment.address + segment.total_size});
      continue;
    }
    std::uintptr_t address = segment.address;
    pools.push_back({.device = segment.device, .begin = address, .bytes = segment.total_size});
    for (const auto& block : segment.blocks) {
      if (!block.active && !block.allocated && block.size > 0) {
        free.push_back({.device = segment.device, .begin = address, .bytes = block.size});
      }
      address += block.size;
    }
  }
  for (const auto& [device, gap] : graph::PlannedRegion::gaps()) {
    if (std::ranges::any_of(asleep, [&](const ByteSpan& span) { return span.contains(gap.begin); })) continue;
    free.push_back({.device = device.index(), .begin = gap.begin, .bytes = gap.size()});
  }
}

void fill(const Stretch& stretch) {
  const c10::cuda::CUDAGuard on_device(stretch.device);
  const cudaError_t status = cudaMemsetAsync(reinterpret_cast<void*>(stretch.begin), 0xFF, stretch.bytes,
                                             c10::cuda::getCurrentCUDAStream(stretch.device).stream());
  TORCH_CHECK(status == cudaSuccess, "cudaMemsetAsync: ", cudaGetErrorString(status));
}

#else

void read_pools(std::vector<Stretch>& /*pools*/, std::vector<Stretch>& /*free*/) {}
void fill(const Stretch& /*stretch*/) {}

#endif

// Below autograd: the user's tensor keeps its version, and may be one of inference mode.
void fill_with_nan(const at::Tensor& tensor) {
  const trace::QuietScope quiet;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  bits_of(tensor).fill_(-1);
}

}  // namespace

GraphMemory GraphMemory::now() {
  GraphMemory memory;
  if (cuda_devices_in_use().empty()) return memory;
  try {
    read_pools(memory.pools_, memory.free_);
  } catch (const c10::Error& error) {  // an allocator that tells nothing: cudaMallocAsync, or one of the user's own
    memory.blind_ = error.what_without_backtrace();
  }
  return memory;
}

bool GraphMemory::holds(const at::Tensor& tensor) const {
  if (graph::is_made_by_a_tape(tensor)) return true;
  if (!tensor.is_cuda() || trace::storage_of(tensor) == nullptr) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(trace::address_of(tensor));
  return std::any_of(pools_.begin(), pools_.end(), [&](const Stretch& pool) {
    return pool.device == tensor.get_device() && address >= pool.begin && address < pool.begin + pool.bytes;
  });
}

std::string GraphMemory::poison(std::span<const at::Tensor> results, std::span<const at::Tensor> spared) const {
  std::vector<at::Tensor> to_fill;
  for (const at::Tensor& result : results) {
    if (!result.defined() || trace::storage_of(result) == nullptr || result.numel() == 0) continue;
    const bool keep = std::any_of(spared.begin(), spared.end(), [&](const at::Tensor& other) {
      return trace::storage_of(other) == trace::storage_of(result);
    });
    if (!keep && holds(result)) to_fill.push_back(result);
  }
  graph::poison_tapes(to_fill);
  for (const at::Tensor& result : to_fill) {
    if (result.is_cuda() && (result.is_floating_point() || result.is_complex())) fill_with_nan(result);
  }
  for (const Stretch& stretch : free_) fill(stretch);
  return blind_;
}

}  // namespace pianola::verification
