#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/cuda/mapped_memory.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::graph {

// Note [Pools that sleep]
// A pool's segments lie at addresses of Pianola's, whose memory may go back to the driver and come again: torch asks the pool's own
// allocator for segments, and cuts them up as ever. What a replay reads before it writes it has a tensor that holds it, so only blocks
// that are held are kept on the host meanwhile; all else is scratch, which the next replay writes first (see Note [Memory that is free
// in a graph's pool] in verify/graph_memory.cpp).

/// What hands out the segments of pools that may sleep.
std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> sleeping_segments();

/// Whether the segment at this address has no memory now.
bool is_segment_asleep(std::uintptr_t address);

/// The memory of a pool that sleeps.
class AsleepPool {
 public:
  /// Copies what is held to pinned memory of the host, where it stays as long as this lives. Waits for the device. Nobody uses the pool
  /// meanwhile.
  /// @throws c10::Error  The host has no memory for what is held, or the device failed: nothing has changed.
  AsleepPool(c10::Device device, c10::MempoolId_t pool);
  AsleepPool(const AsleepPool&) = delete;
  AsleepPool& operator=(const AsleepPool&) = delete;
  ~AsleepPool() = default;

  /// Gives all memory back; also once more after wake(), where nobody has used the pool since.
  /// @return  What went back to the driver. @throws DeviceError  The driver refused: it has not, and nothing is lost.
  std::size_t give_back();
  /// Brings the memory back, with what was held. Others may capture meanwhile. Waits for its own copies.
  /// @throws OutOfMemoryError  There is no room: it goes on sleeping.
  void wake();

  /// Whether anything was kept.
  [[nodiscard]] bool holds_any() const noexcept { return !held_.empty(); }

 private:
  void make_room_on_host();
  void take_room_on_host();
  void map_and_copy();
  [[nodiscard]] cudaStream_t copying_stream() const;
  void start_copies(const MappedMemory& memory, bool to_host);
  void copy(bool to_host);

  c10::Device device_;
  c10::MempoolId_t pool_;
  std::vector<ByteSpan> held_;
  std::vector<at::Tensor> on_host_;  // of all of them, one behind the other, in pieces
};

}  // namespace pianola::graph
