#include <pianola/audit/side_stream.hpp>

#include <pianola/audit/generator_position.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/thread_streams.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#endif

#include <exception>

namespace pianola::auditing {

#if PIANOLA_WITH_CUDA

struct SideStream::Impl {
  explicit Impl(c10::DeviceIndex device)
      : outer(c10::cuda::getCurrentCUDAStream(device)),
        side(graph::thread_stream(graph::StreamPurpose::audit, device)),
        guard(side) {
    order(outer, side);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    try {
      order(side, outer);
    } catch (const std::exception& error) {
      TORCH_WARN("pianola: streams could not be joined after an audit: ", error.what());
    }
  }

  static void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
    at::cuda::CUDAEvent done;
    done.record(first);
    done.block(then);
  }

  c10::cuda::CUDAStream outer, side;
  c10::cuda::CUDAStreamGuard guard;
};

SideStream::SideStream(std::optional<c10::Device> device) {
  const bool wanted = device ? device->is_cuda() : cuda_is_in_use();
  if (!wanted) return;
  const bool has_index = device && device->has_index();
  impl_ = std::make_unique<Impl>(has_index ? device->index() : c10::cuda::current_device());
}

#else

struct SideStream::Impl {};

SideStream::SideStream(std::optional<c10::Device> /*device*/) {}

#endif

SideStream::~SideStream() = default;

}  // namespace pianola::auditing
