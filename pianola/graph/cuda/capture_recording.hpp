#pragma once
#include <pianola/core/byte_span.hpp>
#include <pianola/core/error.hpp>
#include <pianola/cuda/capture_info.hpp>
#include <pianola/graph/cuda/allocation_watch.hpp>
#include <pianola/graph/cuda/capture_watch.hpp>
#include <pianola/graph/cuda/captured_graph.hpp>
#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/cuda/generator_watch.hpp>
#include <pianola/graph/cuda/host_copies.hpp>
#include <pianola/graph/cuda/other_threads.hpp>
#include <pianola/graph/input_keeper.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace pianola::graph {

/// All that exists only while a capture is open: who watches it, what they saw, and what broke it. The last it tells also when the
/// capture was abandoned.
class CaptureRecording {
 public:
  /// @param stream      Will be captured.
  /// @param is_in_pool  Whether an address is of an earlier graph of the pool, which is looked after there.
  CaptureRecording(const CudaPool& pool, c10::cuda::CUDAStream stream, const CaptureOptions& options,
                   const std::function<bool(std::uintptr_t address)>& is_in_pool);

  [[nodiscard]] c10::cuda::CUDAStream stream() const noexcept { return stream_; }
  /// Products find the workspaces of the pool's family from now on.
  void lend_workspaces(CudaPoolFamily& family) { workspaces_.emplace(family, stream_.stream()); }
  /// The capture has begun.
  /// @param drawable    The states of generators that take part.
  /// @param registered  How many take part by now; 0 when the capture is over.
  void begin(const CapturedGraph& graph, GeneratorClock::Drawable drawable, std::function<std::size_t()> registered,
             const CaptureOptions& options);

  /// Adds all that have to be shown the step's operations.
  void add_observers(std::vector<trace::OpObserver*>& all);
  /// @param tells_blocks  The trace is told what memory each operation is handed out.
  [[nodiscard]] TraceRecorderOptions recorder_options(const CapturedGraph& graph, bool tells_blocks);
  /// Nodes of the capture that nobody was told of yet; valid until the next call.
  std::span<const CUgraphNode> new_nodes() { return frontier_.advance(stream_.stream()); }
  /// Where a trace is recorded.
  [[nodiscard]] AllocationWatch& allocations() { return *allocations_; }
  [[nodiscard]] const CaptureWatch& watch() const noexcept { return watch_; }

  /// As the last work of the capture.
  [[nodiscard]] GeneratorClock append_advance(const CapturedGraph& graph) {
    return GeneratorClock::append_advance(drawable_, graph.capture_id(), generators_->drew());
  }
  [[nodiscard]] const GeneratorClock::Drawable& drawable() const noexcept { return drawable_; }
  /// What the graph has to keep: pinned copies of the host's memory. No more are made.
  [[nodiscard]] std::vector<at::Tensor> take_host_copies();
  /// The same of tensors from before; nothing without a trace.
  [[nodiscard]] std::vector<c10::Storage> take_inputs();

  /// Before the capture is abandoned: notes whether it broke, for then the stream does not tell any more.
  void note_break() { broke_ = is_broken(); }
  void drop_host_copies() noexcept { host_copies_.reset(); }
  /// The capture was abandoned: nobody watches any more, and the family has its workspaces back.
  void stop() noexcept;

  [[nodiscard]] std::optional<Diagnosis> offence(const OpTrace* trace) const;
  [[nodiscard]] std::optional<Diagnosis> explain(const c10::Error& error, const OpTrace* trace) const;

 private:
  [[nodiscard]] bool is_broken() const;
  [[nodiscard]] Diagnosis explain_break(const OpTrace* trace) const;

  c10::cuda::CUDAStream stream_;
  std::optional<CudaPoolFamily::Recording> workspaces_;
  CaptureWatch watch_;
  std::optional<OtherThreads> other_threads_;  // where they can do harm
  CaptureFrontier frontier_;
  std::optional<AllocationWatch> allocations_;
  std::optional<InputKeeper> keeper_;
  std::optional<GeneratorWatch> generators_;
  GeneratorClock::Drawable drawable_;
  std::vector<ByteSpan> new_blocks_;  // what the trace was told last
  std::size_t known_blocks_ = 0;
  std::optional<HostCopies> host_copies_;  // where the step is known to make some
  bool broke_ = false;                     // what the stream said before the capture was abandoned
};

}  // namespace pianola::graph
