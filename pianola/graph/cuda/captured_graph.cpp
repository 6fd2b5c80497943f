#include <pianola/graph/cuda/captured_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/torch_abi/cuda/graph_reset.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

namespace pianola::graph {

namespace {

// torch warns about an empty graph; here that is an error already, or all that an abandoned capture has.
class Silence final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

std::recursive_mutex& books() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;  // never destroyed: a static Graph may end after it
  return mutex;
}

void end_on_stream(cudaStream_t stream) noexcept {
  cudaGraph_t leftover = nullptr;
  if (cudaStreamEndCapture(stream, &leftover) == cudaSuccess && leftover != nullptr) cudaGraphDestroy(leftover);
  (void)cudaGetLastError();  // a broken capture answers with its error once more
}

}  // namespace

CapturedGraph::~CapturedGraph() {
  const std::lock_guard lock(books());
  reset();
}

// Where torch fills the words on the device that a generator's graphs draw by when a capture begins, it does so on the capture's
// stream. A replay on another stream may read them just then, and nothing needs them: recorded kernels read what a replay finds.
// So torch fills others.
class CapturedGraph::SpareWords {
 public:
  explicit SpareWords(const CapturedGraph& graph) {
    if (!torch_abi::kFillsWordsAtBegin) return;
    std::vector<GeneratorClock::State> states;
    for (const auto& entry : graph.captured_generator_states_) states.push_back(entry.first);
    held_.emplace(states);  // before they are looked at: another thread that begins a capture exchanges them, too
    for (const GeneratorClock::State& state : states) {
      const torch_abi::DrawWords words(state);
      if (!words.seed().defined() || !words.offset().defined()) continue;
      spare_.emplace_back(at::empty_like(at::Tensor(words.seed())), at::empty_like(at::Tensor(words.offset())));
      words_.push_back(words);
    }
    exchange();
  }
  SpareWords(const SpareWords&) = delete;
  SpareWords& operator=(const SpareWords&) = delete;
  ~SpareWords() { exchange(); }

 private:
  void exchange() noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i].exchange(spare_[i].first, spare_[i].second);
  }

  std::vector<torch_abi::DrawWords> words_;
  std::vector<std::pair<at::TensorBase, at::TensorBase>> spare_;
  std::optional<GeneratorClock::Hold> held_;
};

void CapturedGraph::let_draw(const std::vector<at::Generator>& generators, GeneratorClock::Drawable& drawable) {
  for (const at::Generator& generator : generators) {
    const auto known = captured_generator_states_;
    torch_abi::let_draw(*this, generator);
    for (const auto& entry : captured_generator_states_) {
      if (known.count(entry.first) == 0) drawable.emplace_back(entry.first, generator);
    }
  }
}

// What torch fills on the device is nobody's operation: no mode of Python's may see it while the lock is held.
GeneratorClock::Drawable CapturedGraph::begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode,
                                              const std::vector<at::Generator>& generators) {
  const trace::QuietScope quiet;
  GeneratorClock::Drawable drawable;
  if (torch_abi::kRegistersBeforeCapture) {
    const std::lock_guard lock(books());
    let_draw(generators, drawable);
  }
  {
    const SpareWords spare(*this);
    const std::lock_guard lock(books());
    capture_begin(pool, mode);
  }
  const std::lock_guard lock(books());
  if (!torch_abi::kRegistersBeforeCapture) let_draw(generators, drawable);
  for (const auto& entry : captured_generator_states_) words_.emplace_back(entry.first).give_to(capture_id_);
  return drawable;
}

std::vector<torch_abi::DrawCount> CapturedGraph::drawn() const {
  std::vector<torch_abi::DrawCount> drawn;
  for (const auto& entry : captured_generator_states_) drawn.emplace_back(entry.first, capture_id_);
  return drawn;
}

void CapturedGraph::finish() {
  const std::lock_guard lock(books());
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  capture_end();
}

OwnedGraph CapturedGraph::release() noexcept {
  has_graph_ = false;
  return OwnedGraph(std::exchange(graph_, nullptr));
}

// Note [Abandoning a capture]
// Up to 2.13 torch ends a broken capture with a throw and skips the rest: the pool stays routed, its memory is never returned, the
// generators stay "capturing". So end the broken capture here, then give torch an empty one on the same stream to end:
// its own book-keeping runs to the end, and reset() returns the memory.
void CapturedGraph::abandon(c10::cuda::CUDAStream stream) noexcept {
  const std::lock_guard lock(books());
  if (capture_dev_ == UNDEFINED_DEVICE) return leave_unknown_states();  // it never began
  if (!capture_ended_) {
    if (torch_abi::kResetEndsBrokenCaptures) {
      end_on_stream(stream);
    } else {
      end_broken_capture(stream);
    }
  }
  try {
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: torch could not reset an abandoned graph: ", error.what());
  }
}

void CapturedGraph::leave_unknown_states() noexcept {
  const auto listed = captured_generator_states_;
  for (const auto& entry : listed) {
    if (!torch_abi::knows(entry.first, *this)) captured_generator_states_.erase(entry.first);
  }
}

void CapturedGraph::end_broken_capture(c10::cuda::CUDAStream stream) noexcept {
  end_on_stream(stream);
  try {
    const c10::cuda::CUDAStreamGuard on_stream(stream);
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    finish();
  } catch (const std::exception&) {
    end_on_stream(stream);
    forget_capture();
  }
}

// The last resort, where the device itself is broken: what capture_end() would have undone, piece by piece.
void CapturedGraph::forget_capture() noexcept {
  try {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_);
    for (const auto& entry : captured_generator_states_) torch_abi::forget_capture(entry.first, capture_id_);
    capture_ended_ = true;  // lets reset() release the pool
  } catch (const std::exception& error) {
    TORCH_WARN("pianola: memory of an abandoned capture could not be returned: ", error.what());
  }
}

cudaStreamCaptureMode to_cuda(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::global:
      return cudaStreamCaptureModeGlobal;
    case CaptureMode::thread_local_:
      return cudaStreamCaptureModeThreadLocal;
    case CaptureMode::relaxed:
      return cudaStreamCaptureModeRelaxed;
  }
  return cudaStreamCaptureModeGlobal;
}

void bind_context() {
  thread_local bool bound = false;
  if (bound) [[likely]]
    return;
  c10::cuda::set_device(c10::cuda::current_device(), /*force=*/true);
  bound = true;
}

void check_may_capture_on_cuda(c10::Device device, const CaptureOptions& options) {
  if (!options.pool.empty() && options.pool.state()->device() != device) {
    throw UsageError(
        {.what = fmt::format("the pool is on {}, the graph on {}", options.pool.state()->device().str(), device.str()),
         .fix = "make the pool for the graph's device: pianola::GraphPool pool(graph.device())"});
  }
  for (const at::Generator& generator : options.generators) {
    // torch.Generator("cuda") names no device of its own: torch takes it on each.
    const c10::Device of_generator = generator.device();
    if (of_generator.type() != device.type() || (of_generator.has_index() && of_generator != device)) {
      throw UsageError({.what = fmt::format("a generator in 'generators' is on {}, the graph on {}",
                                            generator.device().str(), device.str())});
    }
  }
  if (options.stream && (options.stream->device() != device ||
                         c10::cuda::CUDAStream(*options.stream) == c10::cuda::getDefaultCUDAStream(device.index()))) {
    throw UsageError(
        {.what = fmt::format("stream {} cannot be captured: it is the default stream, or of another device "
                             "than the graph's {}",
                             options.stream->id(), device.str()),
         .fix = "leave 'stream' empty, or take one by c10::cuda::getStreamFromPool(); a graph may be "
                "replayed on any stream"});
  }
  if (capture_status(c10::cuda::getCurrentCUDAStream(device.index()).stream()) != CaptureStatus::none) {
    throw UsageError({.what = "other code is already capturing the current stream",
                      .fix = "captures do not nest: end the outer one first"});
  }
}

}  // namespace pianola::graph
