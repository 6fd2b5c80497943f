#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Allocator.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>

namespace pianola::torch_abi {

// Note [Words that captures draw by]
// A captured kernel that draws reads where its generator stands from two numbers on the device, the words: seed and offset. It adds
// what the capture had drawn before it. Up to torch 2.11 words and count are the generator state's, one for all captures, which take
// part if they are registered before they begin. Since 2.12 each capture has its own, made and registered at its first draw. Here a
// capture draws once from nothing as soon as it has begun, which registers it, and is given words that all captures of the state
// share: so one clock serves all graphs, and they cost one fill.

using GeneratorState = c10::intrusive_ptr<at::CUDAGeneratorState>;
using CaptureId = c10::CaptureId_t;

/// Whether let_draw() comes before the capture; else behind its begin, on its stream.
inline constexpr bool kRegistersBeforeCapture = !PIANOLA_TORCH_AT_LEAST(2, 12);
/// Whether torch writes the words of what is registered where a capture begins.
inline constexpr bool kFillsWordsAtBegin = !PIANOLA_TORCH_AT_LEAST(2, 12);

/// Has the state of a generator take part in a capture: it is in the graph's list then.
void let_draw(at::cuda::CUDAGraph& graph, const at::Generator& generator);

/// The words of a state, for as long as it lives.
class DrawWords {
 public:
  explicit DrawWords(const GeneratorState& state);

  /// One Long on the device each; undefined where no capture draws from the state.
  [[nodiscard]] const at::TensorBase& seed() const noexcept;
  [[nodiscard]] const at::TensorBase& offset() const noexcept;

  /// From here on an open capture, which takes part, draws by these.
  void give_to(CaptureId capture) const;
  /// Replaces them; only where kFillsWordsAtBegin.
  void exchange(at::TensorBase& seed, at::TensorBase& offset) const noexcept;

 private:
  GeneratorState state_;
#if PIANOLA_TORCH_AT_LEAST(2, 12)
  struct Shared;
  std::shared_ptr<Shared> shared_;
#endif
};

/// What an open capture has drawn from a state so far.
class DrawCount {
 public:
  DrawCount(const GeneratorState& state, CaptureId capture);
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
#if PIANOLA_TORCH_AT_LEAST(2, 12)
  c10::intrusive_ptr<at::CUDAGeneratorCaptureState> of_;
#else
  GeneratorState of_;
#endif
};

/// Whether the state knows of the graph that lists it. Up to 2.11 a graph lists a state first; where the state then has no memory for
/// its words, torch's own graph ends the process when it goes.
bool knows(const GeneratorState& state, at::cuda::CUDAGraph& graph) noexcept;

/// A capture that broke is over for the state.
void forget_capture(const GeneratorState& state, CaptureId capture) noexcept;

}  // namespace pianola::torch_abi
