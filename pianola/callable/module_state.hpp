#pragma once
#include <pianola/callable/callable.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

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

  /// Whether each parameter and buffer is still the tensor that it was at construction, buffers look at the same memory,
  /// and parameters require grad as they did; in a tight loop.
  [[nodiscard]] bool has_its_parameters() const;
  /// "parameter 'weight': the module has another tensor now", one entry each.
  [[nodiscard]] std::vector<std::string> parameter_differences() const;
  /// Its parameters that require grad.
  [[nodiscard]] std::vector<at::Tensor> differentiable_parameters() const;
  /// "layers.0.weight", or nothing if it is no parameter of the module.
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& parameter) const;

 private:
  struct ScriptFlag {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t slot;
  };
  // What a parameter or buffer was at construction.
  struct Known {
    explicit Known(at::Tensor tensor_, bool is_buffer_);
    [[nodiscard]] bool is(const at::Tensor& now) const;
    at::Tensor tensor;
    bool is_buffer;
    bool requires_grad;
    const void* address;  // nullptr for parameters, which ParameterGuard watches
  };
  struct Dense {
    const c10::TensorImpl* impl;
    const torch::autograd::AutogradMeta* meta;
    bool requires_grad;
  };
  struct ScriptParameter {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    std::size_t slot;
    Known known;
  };
  struct Parameter {
    std::size_t module;    // in modules_
    std::size_t position;  // in its own dictionary
    Known known;
  };

  [[nodiscard]] const at::Tensor& now(const Parameter& parameter) const;
  [[nodiscard]] static const at::Tensor& now(const ScriptParameter& parameter);
  void read_module(const std::shared_ptr<torch::nn::Module>& root);
  void read_script(const torch::jit::Module& root);

  bool callable_is_module_ = false;
  std::vector<std::string> module_names_;  // of either kind
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<ScriptFlag> script_flags_;
  std::vector<std::string> parameter_names_;
  std::vector<Parameter> parameters_;              // module by module, in the order of its dictionary
  std::vector<std::size_t> parameters_of_module_;  // how many each module has
  std::vector<Dense> dense_;                       // of parameters_, for the tight loop
  std::vector<std::string> buffer_names_;
  std::vector<Known> buffers_;  // of a torch::nn module, which has no way to put another tensor in their place
  std::vector<ScriptParameter> script_parameters_;
};

}  // namespace pianola::callable
