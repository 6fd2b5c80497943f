#include <pianola/graph/generator_states.hpp>

#include <pianola/trace/op_info.hpp>
#include <pianola/trace/quiet_scope.hpp>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace pianola::graph {

namespace {

#if PIANOLA_WITH_CUDA
// A CUDA generator that is set has cuDNN's dropout state made anew at its next use, which draws a number and reads it on the
// host. Where only the offset moved, moving it back spares that.
bool put_offset_back(at::Generator& generator, const at::Tensor& state) {
  auto* const cuda = dynamic_cast<at::CUDAGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  if (cuda == nullptr) return false;
  std::array<std::uint64_t, 2> saved{};  // seed, offset
  if (state.nbytes() != sizeof saved) return false;
  std::memcpy(saved.data(), state.const_data_ptr(), sizeof saved);
  if (cuda->current_seed() != saved[0]) return false;
  cuda->set_philox_offset_per_thread(saved[1]);
  return true;
}
#else
bool put_offset_back(at::Generator& /*generator*/, const at::Tensor& /*state*/) { return false; }
#endif

}  // namespace

void GeneratorStates::remember(const std::vector<at::Generator>& generators) {
  for (const at::Generator& generator : generators) remember(generator);
}

void GeneratorStates::remember(at::Generator generator) {  // by value: a handle, whose lock is not const
  const auto same = [&](const auto& known) { return known.first == generator; };
  if (std::any_of(states_.begin(), states_.end(), same)) return;
  const trace::QuietScope quiet;
  const std::lock_guard lock(generator.mutex());
  at::Tensor state = generator.get_state();
  states_.emplace_back(std::move(generator), std::move(state));
}

void GeneratorStates::on_op_begin(const trace::OpSpan& op) {
  if (!op.info->seeded) return;
  for (const c10::IValue& value : op.inputs) {
    if (value.isGenerator() && value.toGenerator().defined()) remember(value.toGenerator());
  }
}

void GeneratorStates::restore() const {
  const trace::QuietScope quiet;
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    if (!put_offset_back(generator, state)) generator.set_state(state);
  }
}

}  // namespace pianola::graph
