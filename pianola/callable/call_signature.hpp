#pragma once
#include <pianola/callable/ambient.hpp>
#include <pianola/callable/guard.hpp>
#include <pianola/callable/module_view.hpp>
#include <pianola/callable/torch_settings.hpp>
#include <pianola/core/error.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// Settings of the calling thread, and of the process, that decide what a call does, and whether a graph could do it at all.
struct CallModes {
  bool gradients = true;
  bool inference = false;
  bool saved_hooks = false;  ///< Hooks on saved tensors are set, and tensors are saved.
  Ambient ambient = {};
  TorchSettings settings = {};
  trace::Oddity odd_input = trace::Oddity::none;  ///< Of the first input that no graph can take.

  /// Those that matter to the device of the inputs; without inputs, to the accelerator where there is one.
  static CallModes current(std::span<const at::Tensor> inputs);
  friend bool operator==(const CallModes&, const CallModes&) = default;
};

[[nodiscard]] bool has_hooks_on_saved_tensors();

/// What has to be alike for two calls of a function to run the same graph.
class CallSignature {
 public:
  CallSignature(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes, const ModuleView& module);

  /// In constant time per input, and one tight loop over training flags.
  [[nodiscard]] bool fits(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                          const ModuleView& module) const;
  [[nodiscard]] std::int64_t key() const noexcept { return key_; }
  /// "Float[8, 16] cpu, with gradients".
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  /// Why no graph can stand for such calls; nothing where one can. See trace's Note [What is plain].
  [[nodiscard]] const std::optional<Diagnosis>& obstacle() const noexcept { return obstacle_; }

 private:
  [[nodiscard]] bool accepts(std::span<const at::Tensor> inputs) const;

  std::int64_t key_;
  CallModes modes_;
  std::optional<Diagnosis> obstacle_;  // one signature stands for all that have one
  std::vector<InputGuard> inputs_;     // empty where there is an obstacle
  std::vector<bool> flags_;
  std::string text_;
};

}  // namespace pianola::callable
