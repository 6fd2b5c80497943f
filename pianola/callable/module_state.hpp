#pragma once
#include <pianola/callable/callable.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::callable {

/// What a module says of itself that decides what its forward does: the training flags of all its submodules, and which
/// tensors it has for parameters. For a function that is no module: always training, nothing to compare.
class ModuleState {
 public:
  /// @throws UsageError  A buffer requires grad.
  explicit ModuleState(const Callable& callable);

  [[nodiscard]] bool is_module() const noexcept { return callable_is_module_; }
  /// The flag of the module itself.
  [[nodiscard]] bool training() const;
  void set_training(bool training) const;

  /// The flags of all submodules, in a fixed order.
  [[nodiscard]] std::vector<bool> flags() const;
  void set_flags(const std::vector<bool>& flags) const;
  /// Whether they are `flags`, in a tight loop.
  [[nodiscard]] bool has_flags(const std::vector<bool>& flags) const;
  /// Names of the submodules whose flag is not as in `flags`.
  [[nodiscard]] std::vector<std::string> differing_flags(const std::vector<bool>& flags) const;

  /// Whether each parameter is still the tensor that it was at construction, in a tight loop.
  [[nodiscard]] bool has_its_parameters() const;
  /// Names of those that are not.
  [[nodiscard]] std::vector<std::string> replaced_parameters() const;
  /// "layers.0.weight", or nothing if it is no parameter of the module.
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& parameter) const;

 private:
  struct ScriptFlag {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t slot;
  };
  struct ScriptParameter {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t slot;
    at::Tensor tensor;
  };
  struct Parameter {
    std::size_t module;    // in modules_
    std::size_t position;  // in its own dictionary
    at::Tensor tensor;
  };

  void read_module(const std::shared_ptr<torch::nn::Module>& root);
  void read_script(const torch::jit::Module& root);

  bool callable_is_module_ = false;
  std::vector<std::string> module_names_;  // of either kind
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<ScriptFlag> script_flags_;
  std::vector<std::string> parameter_names_;
  std::vector<Parameter> parameters_;  // module by module, in the order of its dictionary
  std::vector<std::size_t> parameters_of_module_;  // how many each module has
  std::vector<const c10::TensorImpl*> impls_;      // of parameters_, for the tight loop
  std::vector<ScriptParameter> script_parameters_;
};

}  // namespace pianola::callable
