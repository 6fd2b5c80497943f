#include <pianola/graph/cuda/capture_recording.hpp>

#include <pianola/graph/open_capture.hpp>
#include <pianola/torch_abi/cuda/draw_words.hpp>

#include <utility>

namespace pianola::graph {

CaptureRecording::CaptureRecording(const CudaPool& pool, c10::cuda::CUDAStream stream, const CaptureOptions& options,
                                   const std::function<bool(std::uintptr_t)>& is_in_pool)
    : stream_(stream), watch_(stream.stream()) {
  if (!options.trace) return;
  allocations_.emplace(pool.id());
  if (options.mode == CaptureMode::global) other_threads_.emplace(stream.stream());
  keeper_.emplace([is_in_pool](const void* address) { return is_in_pool(reinterpret_cast<std::uintptr_t>(address)); });
}

void CaptureRecording::begin(const CapturedGraph& graph, GeneratorClock::Drawable drawable,
                             std::function<std::size_t()> registered, const CaptureOptions& options) {
  drawable_ = std::move(drawable);
  generators_.emplace(graph.drawn(), std::move(registered), options.set_generators);
  if (KeepHostCopies::are_wanted()) host_copies_.emplace();
}

void CaptureRecording::add_observers(std::vector<trace::OpObserver*>& all) {
  all.push_back(&*generators_);
  if (keeper_) all.insert(all.end(), {&watch_, &*keeper_});
}

TraceRecorderOptions CaptureRecording::recorder_options(const CapturedGraph& graph, bool tells_blocks) {
  // Only the generators that take part can move while a capture is open.
  const auto position = [drawn = graph.drawn()] {
    std::uint64_t sum = 0;
    for (const torch_abi::DrawCount& one : drawn) sum += one.value();
    return sum;
  };
  const auto of_trace = [](std::span<const CUgraphNode> nodes) -> std::span<const void* const> {
    return {reinterpret_cast<const void* const*>(nodes.data()), nodes.size()};
  };
  TraceRecorderOptions options = {
      .random_position = position,
      .new_nodes = [this, of_trace] { return of_trace(new_nodes()); },
      .new_nodes_everywhere = [this, of_trace] { return of_trace(frontier_.advance_everywhere(stream_.stream())); }};
  if (tells_blocks) {
    options.new_blocks = [this]() -> std::span<const ByteSpan> {
      new_blocks_ = allocations_->allocated_since(known_blocks_);
      known_blocks_ += new_blocks_.size();
      return new_blocks_;
    };
  }
  return options;
}

std::vector<at::Tensor> CaptureRecording::take_host_copies() {
  if (!host_copies_) return {};
  std::vector<at::Tensor> copies = host_copies_->take();
  host_copies_.reset();
  return copies;
}

std::vector<c10::Storage> CaptureRecording::take_inputs() {
  if (!keeper_) return {};
  return keeper_->take();
}

void CaptureRecording::stop() noexcept {
  workspaces_.reset();  // before the stream scope takes what is in torch's table for the pool's own
  allocations_.reset();
  if (other_threads_) other_threads_->stop();
  keeper_.reset();
}

bool CaptureRecording::is_broken() const {
  return broke_ || watch_.offender() || capture_status(stream_.stream()) == CaptureStatus::invalidated;
}

Diagnosis CaptureRecording::explain_break(const OpTrace* trace) const {
  if (other_threads_) {
    if (auto culprit = other_threads_->explain()) return *std::move(culprit);
  }
  return explain_broken(watch_, trace);
}

std::optional<Diagnosis> CaptureRecording::offence(const OpTrace* trace) const {
  if (is_broken()) return explain_break(trace);
  return generators_ ? generators_->offence(trace) : std::nullopt;
}

std::optional<Diagnosis> CaptureRecording::explain(const c10::Error& error, const OpTrace* trace) const {
  if (auto exhausted = explain_out_of_memory(error, watch_, trace)) return exhausted;  // also where it broke it
  if (auto known = explain_default_stream(error, watch_)) return known;
  if (auto known = explain_cold_library(error, watch_, trace)) return known;
  if (is_broken()) return explain_break(trace);
  return explain_error(error, watch_, trace);
}

}  // namespace pianola::graph
