#include <pianola/audit/generator_position.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#endif

#include <mutex>

namespace pianola::auditing {
namespace {

std::uint64_t mixed(std::uint64_t into, std::uint64_t value) {
  return (into ^ (value + 0x9e3779b97f4a7c15U + (into << 6U) + (into >> 2U)));
}

// The engine makes its next 624 numbers at once: the first words tell which ones, `left` how many were drawn of them.
std::uint64_t position_of(at::CPUGeneratorImpl& generator) {
  const at::mt19937_data_pod engine = generator.engine().data();
  std::uint64_t position = mixed(engine.seed_, static_cast<std::uint64_t>(engine.left_));
  position = mixed(position, engine.state_[0]);
  position = mixed(position, engine.state_[1]);
  const bool half_used =
      generator.next_float_normal_sample().has_value() || generator.next_double_normal_sample().has_value();
  return mixed(position, half_used ? 1 : 0);
}

}  // namespace

std::uint64_t position_of(const at::Generator& generator) {
  at::Generator handle = generator;  // whose lock is not const
  const std::lock_guard lock(handle.mutex());
  if (auto* const cpu = dynamic_cast<at::CPUGeneratorImpl*>(handle.unsafeGetGeneratorImpl())) return position_of(*cpu);
#if PIANOLA_WITH_CUDA
  if (auto* const cuda = dynamic_cast<at::CUDAGeneratorImpl*>(handle.unsafeGetGeneratorImpl())) {
    return mixed(cuda->current_seed(), cuda->philox_offset_per_thread());
  }
#endif
  return 0;
}

bool cuda_is_in_use() {
#if PIANOLA_WITH_CUDA
  if (!at::globalContext().hasCUDA()) return false;
  const auto& hooks = at::detail::getCUDAHooks();
  return hooks.hasPrimaryContext(hooks.getCurrentDevice());
#else
  return false;
#endif
}

}  // namespace pianola::auditing
