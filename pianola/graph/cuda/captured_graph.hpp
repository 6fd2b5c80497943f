#pragma once
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <vector>

namespace pianola::graph {

// Note [Books of a generator]
// A generator's state knows the graphs that draw from it, in a set that torch changes without a lock: where one thread
// captures while another drops a graph, it would break. All that changes it goes through here, one thread at a time.

/// torch's graph, for its co-operation with allocator and generators, made safe to fail. It keeps the cudaGraph_t and
/// never instantiates it: the executable is ours.
class CapturedGraph final : public at::cuda::CUDAGraph {
 public:
  CapturedGraph() : CUDAGraph(/*keep_graph=*/true) {}
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph();

  /// Before the capture: lets it draw from a generator. @return  Its state; nullptr where that takes part already.
  GeneratorClock::State add_generator(const at::Generator& generator);
  /// The generator states that take part in the capture.
  [[nodiscard]] std::vector<GeneratorClock::State> generator_states() const;

  /// Begins the capture, on the current stream.
  void begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode);
  /// Ends the capture. As capture_end(), but silent where the graph is empty: the caller refuses that.
  void finish();

  /// Ends a capture that cannot be finished, whatever state it is in, and gives all back that capture_begin() took.
  void abandon(c10::cuda::CUDAStream stream) noexcept;

 private:
  void end_broken_capture(c10::cuda::CUDAStream stream) noexcept;
  void forget_capture() noexcept;
};

/// What a capture on CUDA needs of its thread before it may begin.
/// @throws UsageError  The options do not fit the device, or its current stream is being captured.
void check_may_capture_on_cuda(c10::Device device, const CaptureOptions& options);

cudaStreamCaptureMode to_cuda(CaptureMode mode);

/// The driver wants a context on the calling thread; torch binds one only with the first runtime call.
void bind_context();

}  // namespace pianola::graph
