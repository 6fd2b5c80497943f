#include <pianola/graph/cuda/generator_clock.hpp>

#include <pianola/graph/stream_order.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

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
  explicit Mirror(State tracked) : state(std::move(tracked)), words(state) {}

  [[nodiscard]] bool is_current() const {
    return known && seed == next_seed && offset == next_offset &&
           seed_tensor.unsafeGetTensorImpl() == words.seed().unsafeGetTensorImpl() &&
           offset_tensor.unsafeGetTensorImpl() == words.offset().unsafeGetTensorImpl() &&
           seed_writes == writes_to(seed_tensor) && offset_writes == writes_to(offset_tensor) && can_count;
  }

  void set() {
    const trace::QuietScope quiet;
    known = false;
    seed = next_seed;
    offset = next_offset;
    seed_tensor = words.seed();  // held, so that no other tensor can get the same address
    offset_tensor = words.offset();
    fill(seed_tensor, seed);
    fill(offset_tensor, offset);
    seed_writes = writes_to(seed_tensor);
    offset_writes = writes_to(offset_tensor);
    can_count = !seed_tensor.unsafeGetTensorImpl()->is_inference();
    known = true;
  }

  /// On the host: what the next launch draws is its own from here on.
  void take(const at::Generator& generator, std::uint64_t numbers) {
    const std::lock_guard lock(generator.unsafeGetGeneratorImpl()->mutex_);
    next_seed = state->seed_;
    next_offset = state->philox_offset_per_thread_;
    state->philox_offset_per_thread_ += numbers;
  }
  void give_back(const at::Generator& generator, std::uint64_t numbers) {
    const std::lock_guard lock(generator.unsafeGetGeneratorImpl()->mutex_);
    const bool is_untouched = state->seed_ == next_seed && state->philox_offset_per_thread_ == next_offset + numbers;
    if (is_untouched) state->philox_offset_per_thread_ = next_offset;
  }

  std::mutex mutex;  // of a turn
  StreamOrder order;
  State state;
  torch_abi::DrawWords words;
  at::TensorBase seed_tensor, offset_tensor;
  std::uint64_t seed = 0, offset = 0;            // that the device holds
  std::uint64_t next_seed = 0, next_offset = 0;  // where the launch at hand begins
  std::uint32_t seed_writes = 0, offset_writes = 0;
  bool known = false;
  bool can_count = false;  // a tensor made in inference mode does not count its writes: then fill each time
};

GeneratorClock::GeneratorClock() = default;
GeneratorClock::GeneratorClock(GeneratorClock&&) noexcept = default;
GeneratorClock& GeneratorClock::operator=(GeneratorClock&&) noexcept = default;
GeneratorClock::~GeneratorClock() = default;

GeneratorClock GeneratorClock::append_advance(const Drawable& states, torch_abi::CaptureId capture, bool drew) {
  const trace::QuietScope quiet;
  GeneratorClock clock;
  for (const auto& [state, generator] : states) {
    const std::uint64_t count = torch_abi::DrawCount(state, capture).value();
    if (!drew && count == 0) continue;
    auto mirror = mirror_of(state);
    at::Tensor(mirror->words.offset()).add_(static_cast<std::int64_t>(count));
    clock.hands_.push_back({.mirror = std::move(mirror), .generator = generator, .increment = count});
  }
  std::sort(clock.hands_.begin(), clock.hands_.end(),
            [](const Hand& a, const Hand& b) { return std::less<>()(a.mirror.get(), b.mirror.get()); });
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

GeneratorClock::Turn::Turn(const GeneratorClock& clock, const c10::Stream& stream) : clock_(clock) {
  try {
    take(stream);
  } catch (...) {
    end();
    throw;
  }
}

void GeneratorClock::Turn::take(const c10::Stream& stream) {
  for (const Hand& hand : clock_.hands_) {
    Mirror& mirror = *hand.mirror;
    mirror.mutex.lock();
    ++held_;
    mirror.order.enter(stream);
    mirror.take(hand.generator, hand.increment);
    ++taken_;
    if (!mirror.is_current()) [[unlikely]]
      mirror.set();
  }
}

GeneratorClock::Turn::~Turn() { end(); }

void GeneratorClock::Turn::end() noexcept {
  for (std::size_t i = 0; i < held_; ++i) {
    const Hand& hand = clock_.hands_[i];
    if (i < taken_) {
      hand.mirror->give_back(hand.generator, hand.increment);
      hand.mirror->order.abandon();
    }
    hand.mirror->mutex.unlock();
  }
}

void GeneratorClock::Turn::launched() noexcept {
  for (const Hand& hand : clock_.hands_) hand.mirror->offset += hand.increment;
  taken_ = 0;
}

void GeneratorClock::Turn::forget() noexcept {
  for (const Hand& hand : clock_.hands_) hand.mirror->known = false;
}

void GeneratorClock::Turn::leave() {
  for (const Hand& hand : clock_.hands_) hand.mirror->order.leave();
}

GeneratorClock::Hold::Hold(const std::vector<State>& states) {
  for (const State& state : states) held_.push_back(mirror_of(state));
  std::sort(held_.begin(), held_.end(), std::less<>());
  for (const std::shared_ptr<Mirror>& mirror : held_) mirror->mutex.lock();
}

GeneratorClock::Hold::~Hold() {
  for (const std::shared_ptr<Mirror>& mirror : held_) mirror->mutex.unlock();
}

}  // namespace pianola::graph
