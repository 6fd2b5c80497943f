#include <pianola/audit/side_stream.hpp>

#include <pianola/audit/generator_position.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/joined_stream.hpp>
#include <pianola/graph/cuda/thread_streams.hpp>
#endif

namespace pianola::auditing {

#if PIANOLA_WITH_CUDA

struct SideStream::Impl {
  explicit Impl(c10::DeviceIndex device)
      : stream(graph::thread_stream(graph::StreamPurpose::audit, device), "after an audit") {}

  graph::JoinedStream stream;
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
