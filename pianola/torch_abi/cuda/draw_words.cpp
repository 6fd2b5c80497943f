#include <pianola/torch_abi/cuda/draw_words.hpp>

#if PIANOLA_TORCH_AT_LEAST(2, 12)
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <mutex>
#include <unordered_map>
#include <utility>

namespace pianola::torch_abi {

#if PIANOLA_TORCH_AT_LEAST(2, 12)

namespace {

c10::intrusive_ptr<at::CUDAGeneratorCaptureState> find(const GeneratorState& state, CaptureId capture) {
  const std::lock_guard lock(state->capture_states_mutex_);
  const auto found = state->capture_states_.find(capture);
  return found == state->capture_states_.end() ? c10::intrusive_ptr<at::CUDAGeneratorCaptureState>() : found->second;
}

at::TensorBase make_word(c10::Device device) {
  // As CUDAGeneratorCaptureState::initialize() makes them: outside of the graph's pool, which they outlive.
  const c10::InferenceMode counts_writes(false);
  const c10::cuda::CUDAStreamCaptureModeGuard may_allocate(cudaStreamCaptureModeRelaxed);
  const c10::cuda::CUDAStreamGuard outside(c10::cuda::getDefaultCUDAStream(device.index()));
  return at::empty({1}, at::TensorOptions().device(device).dtype(at::kLong));
}

}  // namespace

struct DrawWords::Shared {
  at::TensorBase seed, offset;
};

// To ask where a generator stands is the least that registers its state with the capture of the current stream.
void let_draw(at::cuda::CUDAGraph& /*graph*/, const at::Generator& generator) {
  (void)generator.get<at::CUDAGeneratorImpl>()->philox_offset_per_thread();
}

DrawWords::DrawWords(const GeneratorState& state) : state_(state) {
  static std::mutex mutex;
  static std::unordered_map<const at::CUDAGeneratorState*, std::weak_ptr<Shared>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<Shared>& entry = known[state.get()];
  shared_ = entry.lock();
  if (shared_ == nullptr) entry = shared_ = std::make_shared<Shared>();
}

const at::TensorBase& DrawWords::seed() const noexcept { return shared_->seed; }
const at::TensorBase& DrawWords::offset() const noexcept { return shared_->offset; }

void DrawWords::give_to(CaptureId capture) const {
  const auto of_capture = find(state_, capture);
  if (!of_capture) return;
  if (!shared_->seed.defined()) {
    const c10::Device device = of_capture->rng_state_seed_extragraph_.device();
    shared_->seed = make_word(device);
    shared_->offset = make_word(device);
  }
  of_capture->rng_state_seed_extragraph_ = shared_->seed;
  of_capture->rng_state_offset_extragraph_ = shared_->offset;
}

void DrawWords::exchange(at::TensorBase& /*seed*/, at::TensorBase& /*offset*/) const noexcept {}

DrawCount::DrawCount(const GeneratorState& state, CaptureId capture) : of_(find(state, capture)) {}
std::uint64_t DrawCount::value() const noexcept { return of_ ? of_->offset_intragraph_ : 0; }

bool knows(const GeneratorState& /*state*/, at::cuda::CUDAGraph& /*graph*/) noexcept { return true; }

void forget_capture(const GeneratorState& state, CaptureId capture) noexcept {
  const std::lock_guard lock(state->capture_states_mutex_);
  state->capture_states_.erase(capture);
}

#else

void let_draw(at::cuda::CUDAGraph& graph, const at::Generator& generator) { graph.register_generator_state(generator); }

DrawWords::DrawWords(const GeneratorState& state) : state_(state) {}

const at::TensorBase& DrawWords::seed() const noexcept { return state_->seed_extragraph_; }
const at::TensorBase& DrawWords::offset() const noexcept { return state_->offset_extragraph_; }

void DrawWords::give_to(CaptureId /*capture*/) const {}

void DrawWords::exchange(at::TensorBase& seed, at::TensorBase& offset) const noexcept {
  std::swap(state_->seed_extragraph_, seed);
  std::swap(state_->offset_extragraph_, offset);
}

DrawCount::DrawCount(const GeneratorState& state, CaptureId /*capture*/) : of_(state) {}
std::uint64_t DrawCount::value() const noexcept { return of_->offset_intragraph_; }

bool knows(const GeneratorState& state, at::cuda::CUDAGraph& graph) noexcept {
  return state->registered_graphs_.contains(&graph);
}

void forget_capture(const GeneratorState& state, CaptureId /*capture*/) noexcept { state->capturing_ = false; }

#endif

}  // namespace pianola::torch_abi
