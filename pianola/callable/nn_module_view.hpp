#pragma once
#include <pianola/callable/known_tensor.hpp>
#include <pianola/callable/module_view.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}
namespace torch::nn {
class Module;
}

namespace pianola::callable {

/// A torch::nn module.
class NnModuleView final : public ModuleView {
 public:
  /// @throws UsageError  A buffer requires grad.
  explicit NnModuleView(const std::shared_ptr<torch::nn::Module>& root);
  ~NnModuleView() override;

  [[nodiscard]] bool training() const override;
  void set_training(bool training) const override;
  [[nodiscard]] std::vector<bool> flags() const override;
  void set_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] bool has_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] std::vector<std::string> differing_flags(const std::vector<bool>& flags) const override;
  [[nodiscard]] bool has_its_parameters() const override;
  [[nodiscard]] std::vector<std::string> parameter_differences() const override;
  [[nodiscard]] std::vector<at::Tensor> differentiable_parameters() const override;
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& parameter) const override;

 private:
  struct Submodule {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    std::size_t parameters;  // how many are its own
  };
  struct Dense {  // of a parameter, what the tight loop compares
    const c10::TensorImpl* impl;
    const torch::autograd::AutogradMeta* meta;
    bool requires_grad;
  };
  struct Parameter {
    std::size_t module;    // in modules_
    std::size_t position;  // in its own dictionary
    KnownTensor known;
  };
  void read_own_parameters(const std::string& prefix, const torch::nn::Module& module);
  [[nodiscard]] const at::Tensor& now(const Parameter& parameter) const;

  std::vector<Submodule> modules_;     // the module itself first
  std::vector<Parameter> parameters_;  // module by module, in the order of its dictionary
  std::vector<Dense> dense_;           // of parameters_
  std::vector<KnownTensor> buffers_;   // a torch::nn module has no way to put another tensor in their place
};

}  // namespace pianola::callable
