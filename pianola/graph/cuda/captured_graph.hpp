#pragma once
#include <pianola/cuda/owned_graph.hpp>
#include <pianola/graph/cuda/generator_clock.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
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

  /// Begins the capture, on the current stream. @param generators  That it may draw from.
  /// @return  Their states, each once.
  GeneratorClock::Drawable begin(c10::MempoolId_t pool, cudaStreamCaptureMode mode,
                                 const std::vector<at::Generator>& generators);
  [[nodiscard]] torch_abi::CaptureId capture_id() const noexcept { return capture_id_; }
  /// How many states of generators take part in the capture.
  [[nodiscard]] std::size_t drawn_states() const noexcept { return captured_generator_states_.size(); }
  /// What the capture has drawn, of each state, while it is open.
  [[nodiscard]] std::vector<torch_abi::DrawCount> drawn() const;
  /// Where its kernels read the states' places.
  [[nodiscard]] const std::vector<torch_abi::DrawWords>& words() const noexcept { return words_; }
  /// Ends the capture. As capture_end(), but silent where the graph is empty: the caller refuses that.
  void finish();
  /// What was captured, from then on.
  [[nodiscard]] CUgraph nodes() const noexcept { return const_cast<CapturedGraph&>(*this).raw_cuda_graph(); }
  /// Gives the captured graph away. What remains is memory and generators, which go with this.
  [[nodiscard]] OwnedGraph release() noexcept;

  /// Ends a capture that cannot be finished, whatever state it is in, and gives all back that capture_begin() took.
  void abandon(c10::cuda::CUDAStream stream) noexcept;

 private:
  class SpareWords;
  void let_draw(const std::vector<at::Generator>& generators, GeneratorClock::Drawable& drawable);
  void leave_unknown_states() noexcept;
  void end_broken_capture(c10::cuda::CUDAStream stream) noexcept;
  void forget_capture() noexcept;

  std::vector<torch_abi::DrawWords> words_;
};

/// What a capture on CUDA needs of its thread before it may begin.
/// @throws UsageError  The options do not fit the device, or its current stream is being captured.
void check_may_capture_on_cuda(c10::Device device, const CaptureOptions& options);

cudaStreamCaptureMode to_cuda(CaptureMode mode);

/// The driver wants a context on the calling thread; torch binds one only with the first runtime call.
void bind_context();

}  // namespace pianola::graph
