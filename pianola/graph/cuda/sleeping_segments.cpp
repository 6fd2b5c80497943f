#include <pianola/graph/cuda/sleeping_segments.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/capture_mode.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/mapped_memory.hpp>
#include <pianola/graph/cuda/mapped_segments.hpp>
#include <pianola/graph/cuda/pool_blocks.hpp>
#include <pianola/graph/cuda/pool_returns.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#include <pianola/torch_abi/torch_version.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <ATen/ops/empty.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)

namespace {

constexpr std::size_t kPinnedPiece = std::size_t{128} << 20U;

std::vector<MappedMemory*> memory_of(c10::MempoolId_t pool) {
  std::vector<MappedMemory*> all;
  for (const auto& segment : allocator::snapshot(pool, /*include_traces=*/false).segments) {
    if (MappedMemory* const memory = mapped_segment(segment.address)) all.push_back(memory);
  }
  return all;
}

std::vector<ByteSpan> held_blocks(c10::Device device, c10::MempoolId_t pool) {
  std::vector<ByteSpan> held;
  for (const auto& segment : segments_of(device, pool)) {
    if (mapped_segment(segment.address) == nullptr) continue;
    const std::vector<ByteSpan> inside = held_in(segment);
    held.insert(held.end(), inside.begin(), inside.end());
  }
  return held;
}

}  // namespace

std::shared_ptr<allocator::CUDAAllocator> sleeping_segments() {
  if (!trace::AllocatorWatch::sees_cuda() && allocator::get()->name() != "native") {
    throw UnsupportedError({.what = "a pool that sleeps needs torch's native allocator of CUDA memory",
                            .fix = "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"});
  }
  if (c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) {
    throw UnsupportedError(
        {.what = "a pool that sleeps has segments of its own, which torch refuses with expandable_segments",
         .fix = "leave expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF, or make the pool "
                "without can_sleep"});
  }
  return mapped_segments();
}

bool is_segment_asleep(std::uintptr_t address) {
  const MappedMemory* const memory = mapped_segment(address);
  return memory != nullptr && !memory->is_mapped();
}

AsleepPool::AsleepPool(c10::Device device, c10::MempoolId_t pool) : device_(device), pool_(pool) {
  const c10::cuda::CUDAGuard on_device(device_);
  c10::cuda::device_synchronize();
  held_ = held_blocks(device_, pool_);
  make_room_on_host();
  copy(/*to_host=*/true);
}

std::size_t AsleepPool::give_back() {
  const c10::cuda::CUDAGuard on_device(device_);
  std::vector<MappedMemory*> given_back;
  std::size_t bytes = 0;
  try {
    for (MappedMemory* const memory : memory_of(pool_)) {
      memory->unmap();
      given_back.push_back(memory);
      bytes += memory->bytes();
    }
  } catch (...) {
    for (MappedMemory* const memory : given_back) memory->map();
    copy(/*to_host=*/false);
    throw;
  }
  return bytes;
}

void AsleepPool::wake() {
  const c10::cuda::CUDAGuard on_device(device_);
  try {
    map_and_copy();
  } catch (const OutOfMemoryError&) {
    PoolReturns::instance().empty_cache_to_resume();
    map_and_copy();
  }
}

// What lies in a segment is copied while the next ones are mapped, which takes about as long.
void AsleepPool::map_and_copy() {
  const RelaxedCaptureMode relaxed(Driver::get());  // another thread may capture in global mode
  std::vector<MappedMemory*> back;
  try {
    for (MappedMemory* const memory : memory_of(pool_)) {
      if (!memory->is_mapped()) {
        memory->map();
        back.push_back(memory);
      }
      start_copies(*memory, /*to_host=*/false);
    }
  } catch (...) {
    (void)cudaStreamSynchronize(copying_stream());
    for (MappedMemory* const memory : back) memory->unmap();
    throw;
  }
  C10_CUDA_CHECK(cudaStreamSynchronize(copying_stream()));
}

cudaStream_t AsleepPool::copying_stream() const {
  return thread_stream(StreamPurpose::sleep, device_.index()).stream();
}

// In pieces: torch rounds each allocation of pinned memory up to a power of two. Where there is none, it says so by an error of CUDA's.
void AsleepPool::make_room_on_host() {
  const trace::OwnMemory own;
  try {
    take_room_on_host();
  } catch (const c10::Error& error) {
    on_host_.clear();
    if (std::string_view(error.what_without_backtrace()).find("out of memory") == std::string_view::npos) throw;
    std::throw_with_nested(OutOfMemoryError(
        {.what =
             fmt::format("the host has no {} bytes of pinned memory left, for what tensors hold of a pool that is to "
                         "sleep; it stays awake",
                         total_bytes(held_)),
         .fix = "free memory of the host, or let go of results and gradients of the pool's graphs before suspend()",
         .rule = "PG908"}));
  }
}

void AsleepPool::take_room_on_host() {
  for (std::size_t left = total_bytes(held_); left != 0;) {
    const std::size_t bytes = std::min(left, kPinnedPiece);
    on_host_.push_back(at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true)));
    left -= bytes;
  }
}

void AsleepPool::copy(bool to_host) {
  for (const MappedMemory* const memory : memory_of(pool_)) start_copies(*memory, to_host);
  C10_CUDA_CHECK(cudaStreamSynchronize(copying_stream()));
}

// Of the blocks that lie there. A segment may have gone meanwhile, with all that lay in it.
void AsleepPool::start_copies(const MappedMemory& memory, bool to_host) {
  const cudaStream_t stream = copying_stream();
  std::size_t before = 0;  // bytes of earlier blocks
  for (const ByteSpan& span : held_) {
    std::size_t done = std::exchange(before, before + span.size());
    if (span.begin < memory.address() || span.end > memory.address() + memory.bytes()) continue;
    for (std::uintptr_t at = span.begin; at < span.end;) {
      const std::size_t in_piece = done % kPinnedPiece;
      const std::size_t bytes = std::min(span.end - at, kPinnedPiece - in_piece);
      void* const device = reinterpret_cast<void*>(at);
      void* const host = static_cast<char*>(on_host_[done / kPinnedPiece].mutable_data_ptr()) + in_piece;
      at += bytes;
      done += bytes;
      const cudaError_t status = to_host ? cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream)
                                         : cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);
      TORCH_CHECK(status == cudaSuccess, "cudaMemcpyAsync: ", cudaGetErrorString(status));
    }
  }
}

#else

std::shared_ptr<allocator::CUDAAllocator> sleeping_segments() {
  throw UnsupportedError({.what = "pools that sleep are not known to work with this version of torch",
                          .fix = "make the pool without can_sleep, or use torch 2.11 or 2.15"});
}

bool is_segment_asleep(std::uintptr_t /*address*/) { return false; }

AsleepPool::AsleepPool(c10::Device device, c10::MempoolId_t pool) : device_(device), pool_(pool) {}
std::size_t AsleepPool::give_back() { return 0; }
void AsleepPool::wake() {}

#endif

}  // namespace pianola::graph
