#include <pianola/graph/cuda/thread_streams.hpp>

#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/process_mark.hpp>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace pianola::graph {
namespace {

using c10::cuda::CUDAStream;
using Use = std::pair<StreamPurpose, c10::DeviceIndex>;

// Never destroyed: memory that was made on it may be freed at any time.
CUDAStream make_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard on(device);
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(stream, device);
}

// Of threads that have ended.
class SpareStreams {
 public:
  static SpareStreams& instance() {
    static SpareStreams& spare = *new SpareStreams;  // never destroyed: threads may end after it
    return spare;
  }

  // The one that was left last: its memory is the likeliest to be there still. Not one whose thread left a capture open.
  CUDAStream take(Use use) {
    const std::lock_guard lock(mutex_);
    std::vector<CUDAStream>& streams = streams_[use];
    const auto found = std::find_if(streams.rbegin(), streams.rend(), [](const CUDAStream& stream) {
      return capture_status(stream.stream()) == CaptureStatus::none;
    });
    if (found == streams.rend()) return make_stream(use.second);
    const CUDAStream stream = *found;
    streams.erase(std::next(found).base());
    return stream;
  }

  void leave(const std::map<Use, CUDAStream>& of_thread) {
    const std::lock_guard lock(mutex_);
    for (const auto& [use, stream] : of_thread) streams_[use].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<Use, std::vector<CUDAStream>> streams_;
};

struct ThreadStreams {
  ThreadStreams() = default;
  ThreadStreams(const ThreadStreams&) = delete;
  ThreadStreams& operator=(const ThreadStreams&) = delete;
  ~ThreadStreams() { SpareStreams::instance().leave(streams); }
  std::map<Use, CUDAStream> streams;
};

std::map<Use, CUDAStream>& streams_of_this_thread() {
  thread_local ThreadStreams own;
  return own.streams;
}

}  // namespace

CUDAStream thread_stream(StreamPurpose purpose, c10::DeviceIndex device) {
  std::map<Use, CUDAStream>& own = streams_of_this_thread();
  const Use use = {purpose, device};
  const auto known = own.find(use);
  if (known != own.end()) return known->second;
  return own.emplace(use, SpareStreams::instance().take(use)).first->second;
}

void prepare_to_end_on_this_thread(c10::DeviceIndex device) {
  (void)c10::cuda::getCurrentCUDAStream(device);
  (void)streams_of_this_thread();
  thread_local const ThreadEnd before_them;
}

}  // namespace pianola::graph
