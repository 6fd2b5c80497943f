#include <pianola/graph/cuda/generator_clock.hpp>

#include <pianola/trace/quiet_scope.hpp>

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace pianola::graph {
namespace {

// How often a tensor was written through torch; a graph's own writes do not count.
std::uint32_t writes_to(const at::TensorBase& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

void fill(const at::TensorBase& tensor, std::uint64_t value) {
  at::Tensor(tensor).fill_(static_cast<std::int64_t>(value));
}

}  // namespace

// What the device holds for one generator state, shared by all graphs that draw from it.
struct GeneratorClock::Mirror {
  explicit Mirror(State tracked) : state(std::move(tracked)) {}

  [[nodiscard]] bool is_current() const {
    return known && seed == state->seed_ && offset == state->philox_offset_per_thread_ &&
           seed_tensor.unsafeGetTensorImpl() == state->seed_extragraph_.unsafeGetTensorImpl() &&
           offset_tensor.unsafeGetTensorImpl() == state->offset_extragraph_.unsafeGetTensorImpl() &&
           seed_writes == writes_to(seed_tensor) && offset_writes == writes_to(offset_tensor) && can_count;
  }

  void set() {
    const trace::QuietScope quiet;
    seed = state->seed_;
    offset = state->philox_offset_per_thread_;
    seed_tensor = state->seed_extragraph_;  // held, so that no other tensor can get the same address
    offset_tensor = state->offset_extragraph_;
    fill(seed_tensor, seed);
    fill(offset_tensor, offset);
    seed_writes = writes_to(seed_tensor);
    offset_writes = writes_to(offset_tensor);
    can_count = !seed_tensor.unsafeGetTensorImpl()->is_inference();
    known = true;
  }

  State state;
  at::TensorBase seed_tensor, offset_tensor;
  std::uint64_t seed = 0, offset = 0;
  std::uint32_t seed_writes = 0, offset_writes = 0;
  bool known = false;
  bool can_count = false;  // a tensor made in inference mode does not count its writes: then fill each time
};

GeneratorClock::GeneratorClock() = default;
GeneratorClock::GeneratorClock(GeneratorClock&&) noexcept = default;
GeneratorClock& GeneratorClock::operator=(GeneratorClock&&) noexcept = default;
GeneratorClock::~GeneratorClock() = default;

GeneratorClock GeneratorClock::append_advance(const std::vector<State>& states, bool drew) {
  const trace::QuietScope quiet;
  GeneratorClock clock;
  for (const State& state : states) {
    if (!drew && state->offset_intragraph_ == 0) continue;
    at::Tensor(state->offset_extragraph_).add_(static_cast<std::int64_t>(state->offset_intragraph_));
    clock.hands_.push_back({.mirror = mirror_of(state), .increment = state->offset_intragraph_});
  }
  return clock;
}

std::shared_ptr<GeneratorClock::Mirror> GeneratorClock::mirror_of(const State& state) {
  static std::mutex mutex;
  static std::unordered_map<const at::CUDAGeneratorState*, std::weak_ptr<Mirror>> mirrors;
  const std::lock_guard lock(mutex);
  std::erase_if(mirrors, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<Mirror>& entry = mirrors[state.get()];
  std::shared_ptr<Mirror> mirror = entry.lock();
  if (mirror == nullptr) entry = mirror = std::make_shared<Mirror>(state);
  return mirror;
}

bool GeneratorClock::draws_from(const State& state) const noexcept {
  return std::any_of(hands_.begin(), hands_.end(), [&](const Hand& hand) { return hand.mirror->state == state; });
}

void GeneratorClock::set() const {
  for (const Hand& hand : hands_) {
    if (!hand.mirror->is_current()) [[unlikely]]
      hand.mirror->set();
  }
}

void GeneratorClock::forget() const noexcept {
  for (const Hand& hand : hands_) hand.mirror->known = false;
}

void GeneratorClock::advance() const noexcept {
  for (const Hand& hand : hands_) {
    hand.mirror->offset += hand.increment;
    hand.mirror->state->philox_offset_per_thread_ += hand.increment;
  }
}

}  // namespace pianola::graph
