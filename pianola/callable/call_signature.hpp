#pragma once
#include <pianola/callable/ambient.hpp>
#include <pianola/callable/guard.hpp>
#include <pianola/callable/module_view.hpp>
#include <pianola/callable/torch_settings.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// Settings of the calling thread, and of the process, that decide what a call does.
struct CallModes {
  bool gradients = true;
  bool inference = false;
  Ambient ambient = {};
  TorchSettings settings = {};

  /// Those that matter to the device of the inputs; without inputs, to the accelerator where there is one.
  static CallModes current(std::span<const at::Tensor> inputs);
  friend bool operator==(const CallModes&, const CallModes&) = default;
};

/// What has to be alike for two calls of a function to run the same graph.
class CallSignature {
 public:
  CallSignature(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes, const ModuleView& module);

  /// In constant time per input, and one tight loop over training flags.
  [[nodiscard]] bool fits(std::int64_t key, std::span<const at::Tensor> inputs, const CallModes& modes,
                          const ModuleView& module) const;
  /// "Float[8, 16] cpu, with gradients".
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  [[nodiscard]] bool accepts(std::span<const at::Tensor> inputs) const;

  std::int64_t key_;
  CallModes modes_;
  bool strided_;                    // all inputs; one signature stands for all others, which no graph can take
  std::vector<InputGuard> inputs_;  // empty where not strided
  std::vector<bool> flags_;
  std::string text_;
};

}  // namespace pianola::callable
