#include <pianola/graph/cuda/watched_replays.hpp>

#include <pianola/cuda/capture_mode.hpp>
#include <pianola/cuda/driver.hpp>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace pianola::graph {
namespace {

constexpr std::chrono::minutes kUsualTimeout(10);  // of NCCL's process groups
constexpr std::chrono::hours kLongestTimeout(365 * 24);

void add(WatchedGraph& graph, const std::string& name, c10::DeviceType device) {
  const auto group = c10d::resolve_process_group(name);
  const auto backend = group->getBackend(device);
  graph.timeout = std::min(graph.timeout, backend->getBackendOptions()->timeout);
  graph.groups.push_back(
      {.name = name, .rank = group->getRank(), .size = group->getSize(), .store = group->getStore(), .abort = [name] {
         c10d::resolve_process_group(name)->abort();
       }});
}

}  // namespace

// A CUDA event, asked for from another thread, which must not break a capture of this one, nor begin a context on another device.
class WatchedReplays::End final : public ReplayEnd {
 public:
  // The device is current.
  explicit End(c10::Device device) : device_(device) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() override {
    const c10::cuda::CUDAGuard on_device(device_);
    const RelaxedCaptureMode relaxed(Driver::get());
    (void)cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  // An error of the device is somebody else's to tell.
  [[nodiscard]] bool has_come() override {
    const c10::cuda::CUDAGuard on_device(device_);
    const RelaxedCaptureMode relaxed(Driver::get());
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error != cudaErrorNotReady;
  }

 private:
  c10::Device device_;
  cudaEvent_t event_ = nullptr;
};

// One whose backend tells no time is watched for the usual one, and one that torch does not know by its name is not asked.
WatchedReplays::WatchedReplays(c10::Device device, const std::vector<std::string>& groups, std::string holds)
    : device_(device) {
  auto graph =
      std::make_shared<WatchedGraph>(WatchedGraph{.holds = std::move(holds), .timeout = kLongestTimeout, .groups = {}});
  for (const std::string& name : groups) {
    try {
      add(*graph, name, device.type());
    } catch (const std::exception&) {
      graph->timeout = std::min<std::chrono::milliseconds>(graph->timeout, kUsualTimeout);
    }
  }
  graph_ = std::move(graph);
}

void WatchedReplays::launched(cudaStream_t stream) {
  const auto position = ends_.begin() + static_cast<std::ptrdiff_t>(next_);
  if (position == ends_.end() || position->use_count() > 1) ends_.insert(position, std::make_shared<End>(device_));
  const std::shared_ptr<End>& end = ends_[next_];
  next_ = (next_ + 1) % ends_.size();
  end->record(stream);
  HangWatch::of_this_process().launched(graph_, end);
}

}  // namespace pianola::graph
