#include <pianola/callable/call_signature.hpp>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace pianola::callable {
namespace {

c10::DeviceType device_type_of(std::span<const at::Tensor> inputs) {
  if (!inputs.empty()) return inputs.front().device().type();
  return at::globalContext().hasCUDA() ? c10::kCUDA : c10::kCPU;
}

bool are_strided(std::span<const at::Tensor> inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const at::Tensor& input) { return input.layout() == c10::kStrided; });
}

std::string in_words(std::span<const at::Tensor> inputs, const CallModes& modes, const ModuleView& module) {
  std::vector<std::string> parts;
  for (const at::Tensor& input : inputs) {
    parts.push_back(fmt::format("{}[{}] {}{}", c10::toString(input.scalar_type()), fmt::join(input.sizes(), ", "),
                                input.device().str(), input.requires_grad() ? " requires grad" : ""));
  }
  if (inputs.empty()) parts.emplace_back("no tensors");
  if (!module.training()) parts.emplace_back("evaluation");
  parts.emplace_back(modes.inference ? "inference mode" : modes.gradients ? "with gradients" : "without gradients");
  if (modes.ambient.autocast) parts.push_back(fmt::format("autocast {}", c10::toString(modes.ambient.autocast_dtype)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

CallModes CallModes::current(std::span<const at::Tensor> inputs) {
  return {.gradients = at::GradMode::is_enabled(),
          .inference = c10::InferenceMode::is_enabled(),
          .ambient = Ambient::current(device_type_of(inputs)),
          .settings = TorchSettings::current()};
}

CallSignature::CallSignature(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                             const ModuleView& module)
    : key_(key),
      modes_(modes),
      strided_(are_strided(inputs)),
      flags_(module.flags()),
      text_(in_words(inputs, modes, module)) {
  if (!strided_) return;
  for (const at::Tensor& input : inputs) inputs_.emplace_back(input, modes.gradients);
}

bool CallSignature::fits(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                         const ModuleView& module) const {
  return key == key_ && accepts(inputs) && modes == modes_ && module.has_flags(flags_);
}

bool CallSignature::accepts(std::span<const at::Tensor> inputs) const {
  if (!strided_) return !are_strided(inputs);
  if (inputs.size() != inputs_.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs_[i].accepts(inputs[i])) return false;
  }
  return true;
}

}  // namespace pianola::callable
