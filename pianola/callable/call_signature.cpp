#include <pianola/callable/call_signature.hpp>

#include <pianola/trace/numeric_region.hpp>

#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
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

std::size_t first_odd(std::span<const at::Tensor> inputs) {
  const auto is_odd = [](const at::Tensor& input) { return trace::oddity_of_input(input) != trace::Oddity::none; };
  return static_cast<std::size_t>(std::find_if(inputs.begin(), inputs.end(), is_odd) - inputs.begin());
}

std::optional<Diagnosis> obstacle_of(std::span<const at::Tensor> inputs, const CallModes& modes) {
  if (modes.odd_input != trace::Oddity::none) {
    const std::size_t i = first_odd(inputs);
    return trace::refuse_input(modes.odd_input, fmt::format("input {}", i), inputs[i]);
  }
  const trace::Oddity odd = modes.ambient.oddity();
  if (odd == trace::Oddity::none) return std::nullopt;
  return trace::refuse_modes(odd, "the function");
}

// What is not plain may call Python when it is asked for its sizes, or have none.
std::string in_words(const at::Tensor& input) {
  const trace::Oddity odd = trace::oddity_of_input(input);
  if (odd != trace::Oddity::none) return trace::in_words(odd, input);
  return fmt::format("{}[{}] {}{}", c10::toString(input.scalar_type()), fmt::join(input.sizes(), ", "),
                     input.device().str(), input.requires_grad() ? " requires grad" : "");
}

std::string in_words(std::span<const at::Tensor> inputs, const CallModes& modes, const ModuleView& module) {
  std::vector<std::string> parts;
  for (const at::Tensor& input : inputs) parts.push_back(in_words(input));
  if (inputs.empty()) parts.emplace_back("no tensors");
  if (!module.training()) parts.emplace_back("evaluation");
  parts.emplace_back(modes.inference ? "inference mode" : modes.gradients ? "with gradients" : "without gradients");
  if (modes.ambient.region != 0) parts.push_back(trace::NumericRegion::words_of(modes.ambient.region));
  if (modes.ambient.autocast) parts.push_back(fmt::format("autocast {}", c10::toString(modes.ambient.autocast_dtype)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

bool has_hooks_on_saved_tensors() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

CallModes CallModes::current(std::span<const at::Tensor> inputs) {
  trace::Oddity odd = trace::Oddity::none;
  for (std::size_t i = 0; i < inputs.size() && odd == trace::Oddity::none; ++i) odd = trace::oddity_of_input(inputs[i]);
  return {.gradients = at::GradMode::is_enabled(),
          .inference = c10::InferenceMode::is_enabled(),
          .saved_hooks = at::GradMode::is_enabled() && has_hooks_on_saved_tensors(),
          .ambient = Ambient::current(odd == trace::Oddity::none ? device_type_of(inputs) : c10::kCPU),
          .settings = TorchSettings::current(),
          .odd_input = odd};
}

CallSignature::CallSignature(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                             const ModuleView& module)
    : key_(key),
      modes_(modes),
      obstacle_(obstacle_of(inputs, modes)),
      flags_(module.flags()),
      text_(in_words(inputs, modes, module)) {
  if (obstacle_) return;
  for (const at::Tensor& input : inputs) inputs_.emplace_back(input, modes.gradients);
}

bool CallSignature::fits(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                         const ModuleView& module) const {
  return key == key_ && modes == modes_ && accepts(inputs) && module.has_flags(flags_);
}

bool CallSignature::accepts(std::span<const at::Tensor> inputs) const {
  if (obstacle_) return true;  // what the modes say is compared apart
  if (inputs.size() != inputs_.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs_[i].accepts(inputs[i])) return false;
  }
  return true;
}

}  // namespace pianola::callable
