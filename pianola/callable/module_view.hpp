#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// How a module, of whatever kind, shows itself: what decides what its forward does. It is made when the module is
/// captured and remembers what it saw then; calls compare.
class PIANOLA_API ModuleView {
 public:
  ModuleView() = default;
  ModuleView(const ModuleView&) = delete;
  ModuleView& operator=(const ModuleView&) = delete;
  virtual ~ModuleView();

  /// The training flag of the module itself.
  [[nodiscard]] virtual bool training() const = 0;
  /// Of the module and all submodules.
  virtual void set_training(bool training) const = 0;

  /// The flags of all submodules, in a fixed order.
  [[nodiscard]] virtual std::vector<bool> flags() const = 0;
  virtual void set_flags(const std::vector<bool>& flags) const = 0;
  /// Whether they are `flags`. At each call: a tight loop.
  [[nodiscard]] virtual bool has_flags(const std::vector<bool>& flags) const = 0;
  /// Names of the submodules whose flag is not as in `flags`: "layers.0", empty for the module itself.
  [[nodiscard]] virtual std::vector<std::string> differing_flags(const std::vector<bool>& flags) const = 0;

  /// Whether each parameter and buffer is still the tensor that it was at construction, buffers look at the same
  /// memory, and parameters require grad as they did. At each call: a tight loop.
  [[nodiscard]] virtual bool has_its_parameters() const = 0;
  /// "parameter 'weight': the module has another tensor now", one entry each; see KnownTensor::difference().
  [[nodiscard]] virtual std::vector<std::string> parameter_differences() const = 0;
  /// Its parameters that require grad.
  [[nodiscard]] virtual std::vector<at::Tensor> differentiable_parameters() const = 0;
  /// "layers.0.weight", or nothing if it is no parameter of the module.
  [[nodiscard]] virtual std::optional<std::string> name_of(const at::Tensor& parameter) const = 0;
};

}  // namespace pianola
