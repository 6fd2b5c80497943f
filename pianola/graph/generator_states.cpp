#include <pianola/graph/generator_states.hpp>

#include <pianola/graph/seed_marks.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/quiet_scope.hpp>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

namespace pianola::graph {

namespace {

#if PIANOLA_WITH_CUDA
at::CUDAGeneratorImpl* as_cuda(const at::Generator& generator) {
  return dynamic_cast<at::CUDAGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

// A CUDA generator that is set has cuDNN's dropout state made anew at its next use, which draws a number and reads it on the
// host. Where only the offset moved, moving it back spares that.
bool put_offset_back(const at::Generator& generator, const at::Tensor& state) {
  auto* const cuda = as_cuda(generator);
  if (cuda == nullptr) return false;
  std::array<std::uint64_t, 2> saved{};  // seed, offset
  if (state.nbytes() != sizeof saved) return false;
  std::memcpy(saved.data(), state.const_data_ptr(), sizeof saved);
  if (cuda->current_seed() != saved[0]) return false;
  cuda->set_philox_offset_per_thread(saved[1]);
  return true;
}

std::optional<GeneratorPlace> place_on_cuda(const at::Generator& generator) {
  auto* const cuda = as_cuda(generator);
  if (cuda == nullptr) return std::nullopt;
  return GeneratorPlace{.seed = cuda->current_seed(), .position = cuda->philox_offset_per_thread()};
}
#else
bool put_offset_back(const at::Generator& /*generator*/, const at::Tensor& /*state*/) { return false; }
std::optional<GeneratorPlace> place_on_cuda(const at::Generator& /*generator*/) { return std::nullopt; }
#endif

// As remembered, with the generator's lock.
void set(at::Generator& generator, const at::Tensor& state, std::uint64_t seed) {
  if (put_offset_back(generator, state)) return;
  generator.set_state(state);
  SeedMarks::put_seed(generator, seed);
}

}  // namespace

// A CPU generator tells its state only as a tensor of 5 KB: a hash of it says whether it moved. Its first word is the seed,
// which recordings mark.
GeneratorPlace GeneratorPlace::of(const at::Generator& generator) {
  if (auto place = place_on_cuda(generator)) return *place;
  const trace::QuietScope quiet;
  const at::Tensor state = generator.get_state();
  std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  if (generator.device().is_cpu()) bytes.remove_prefix(sizeof(std::uint64_t));
  return {.seed = 0, .position = std::hash<std::string_view>()(bytes)};
}

GeneratorUse::GeneratorUse(const at::Generator& generator, ForeignDraws& others)
    : generator_(generator), others_(&others), number_(others.watch(generator)), left_(now()) {}

// The count comes first: what is counted later is looked at later.
GeneratorUse::Now GeneratorUse::now_under_lock() const {
  const ForeignDraws::Count count = others_->count(number_);
  return {.place = GeneratorPlace::of(generator_), .count = count};
}

GeneratorUse::Now GeneratorUse::now() const {
  at::Generator locked = generator_;  // a handle, whose lock is not const
  const std::lock_guard lock(locked.mutex());
  return now_under_lock();
}

void GeneratorUse::look(const Now& here) {
  if (here.place != left_.place) (here.count.is_after(left_.count) ? moved_by_others_ : moved_by_own_) = true;
  left_ = here;
}

void GeneratorUse::begin() { look(now()); }

// While an operation runs, others may draw between its own draws: who drew what cannot be told.
void GeneratorUse::end() {
  const Now here = now();
  moved_by_last_ = here.place != left_.place;
  moved_by_own_ = moved_by_own_ || moved_by_last_;
  look(here);
}

bool GeneratorUse::is_moved_between() const {
  const Now here = now();
  return here.place != left_.place && !here.count.is_after(left_.count);
}

bool GeneratorUse::put_back(const std::function<void(at::Generator&)>& put) {
  const std::lock_guard lock(generator_.mutex());
  const Now here = now_under_lock();
  look(here);
  if (!moved_by_own_) return true;
  if (moved_by_others_) return false;
  put(generator_);
  left_ = {.place = GeneratorPlace::of(generator_), .count = here.count};
  return true;
}

void GeneratorStates::remember(const std::vector<at::Generator>& generators) {
  for (const at::Generator& generator : generators) remember(generator);
}

void GeneratorStates::remember(at::Generator generator) {  // by value: a handle, whose lock is not const
  const auto same = [&](const auto& known) { return known.generator == generator; };
  if (std::any_of(states_.begin(), states_.end(), same)) return;
  Remembered& remembered = states_.emplace_back();
  if (others_) remembered.use.emplace(generator, *others_);
  const trace::QuietScope quiet;
  const std::lock_guard lock(generator.mutex());
  remembered.state = generator.get_state();
  remembered.seed = SeedMarks::seed_of(generator);
  remembered.generator = std::move(generator);
}

// An operation that is given a generator draws from no other one: what moves the others meanwhile is not its doing.
void GeneratorStates::on_op_begin(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  std::vector<at::Generator> named;
  for (const c10::IValue& value : op.inputs) {
    if (value.isGenerator() && value.toGenerator().defined()) named.push_back(value.toGenerator());
  }
  remember(named);
  for (Remembered& remembered : states_) {
    if (!remembered.use) continue;
    if (!named.empty() && std::find(named.begin(), named.end(), remembered.generator) == named.end()) continue;
    remembered.use->begin();
    remembered.drawing.push_back(op.number);
  }
}

void GeneratorStates::on_op_end(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  for (Remembered& remembered : states_) {
    if (std::erase(remembered.drawing, op.number) > 0) remembered.use->end();
  }
}

void GeneratorStates::restore() const {
  const trace::QuietScope quiet;
  for (const Remembered& remembered : states_) {
    at::Generator generator = remembered.generator;
    const std::lock_guard lock(generator.mutex());
    set(generator, remembered.state, remembered.seed);
  }
}

std::set<std::string> GeneratorStates::put_back() {
  const trace::QuietScope quiet;
  std::set<std::string> moved;
  for (Remembered& remembered : states_) {
    const auto put = [&](at::Generator& generator) { set(generator, remembered.state, remembered.seed); };
    if (!remembered.use->put_back(put)) moved.insert(remembered.generator.device().str());
  }
  return moved;
}

}  // namespace pianola::graph
