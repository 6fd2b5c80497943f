#include <pianola/graph/recurrent_dropout.hpp>

#include <pianola/trace/tensors_of.hpp>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pianola::graph {
namespace {

// Where it drops nothing, it is given the state and leaves it alone.
bool drops(const trace::OpSpan& op) {
  if (op.info->name != "aten::_cudnn_rnn") return false;
  const auto argument = [&](const char* name) -> const c10::IValue& {
    return op.inputs[static_cast<std::size_t>(*op.info->schema().argumentIndexWithName(name))];
  };
  return argument("train").toBool() && argument("dropout").toDouble() > 0;
}

#if PIANOLA_WITH_CUDA
void mark_as_seeded(c10::Device device) {
  at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  auto* const cuda = generator.get<at::CUDAGeneratorImpl>();
  const std::lock_guard lock(generator.mutex());
  const std::uint64_t offset = cuda->get_offset();
  cuda->set_current_seed(cuda->current_seed());  // sets the flag, and the offset to 0
  cuda->set_offset(offset);
}

bool was_seeded(c10::Device device) {
  const at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  if (!generator.get<at::CUDAGeneratorImpl>()->reset_rnn_state()) return false;
  mark_as_seeded(device);
  return true;
}
#else
void mark_as_seeded(c10::Device /*device*/) {}
bool was_seeded(c10::Device /*device*/) { return false; }
#endif

}  // namespace

void RecurrentDropout::on_op_begin(const trace::OpSpan& op) {
  began_anew_ = began_anew_ || op.info->name == "aten::_cudnn_init_dropout_state";
  if (!drops(op)) return;
  trace::for_each_tensor(op.inputs.back(), [&](const at::Tensor& tensor) {  // the last argument is the state
    const bool known = std::any_of(states_.begin(), states_.end(), [&](const State& state) {
      return state.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
    });
    if (!known) states_.push_back({.tensor = trace::WeakTensor(tensor.getIntrusivePtr()), .device = tensor.device()});
  });
}

bool RecurrentDropout::intact() const noexcept {
  return std::none_of(states_.begin(), states_.end(),
                      [](const State& state) { return state.tensor.expired() || was_seeded(state.device); });
}

void RecurrentDropout::begin_recording(c10::Device device) {
  if (!device.is_cuda()) return;
  recorded_on_ = device;
  began_seeded_ = was_seeded(device);
}

std::optional<Diagnosis> RecurrentDropout::offence_of_recording() const {
  if (!recorded_on_ || !began_anew_) return std::nullopt;
  return Diagnosis{
      .what =
          "cuDNN's recurrent dropout began anew while the step was recorded; each replay would begin it anew, and draw "
          "the same numbers",
      .fix =
          "seed before the capture, not in the step, and let a warm-up run take the path that is recorded: it makes "
          "the state that replays go on with"};
}

void RecurrentDropout::forget_recording() {
  if (recorded_on_ && (began_seeded_ || began_anew_)) mark_as_seeded(*recorded_on_);
  *this = {};
}

Diagnosis RecurrentDropout::offence() const {
  return {.what =
              "a generator was seeded or set since the capture: eager would begin cuDNN's recurrent dropout anew, the "
              "graph would continue with its old numbers; nothing was launched",
          .fix =
              "seed before the capture, or capture again; separate dropout modules between the layers follow the "
              "generator"};
}

}  // namespace pianola::graph
