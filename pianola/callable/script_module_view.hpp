#pragma once
#include <pianola/callable/known_tensor.hpp>
#include <pianola/callable/module_view.hpp>

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace pianola::callable {

/// A TorchScript module.
class ScriptModuleView final : public ModuleView {
 public:
  /// @throws UsageError  A buffer requires grad.
  explicit ScriptModuleView(const torch::jit::Module& root);

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
  using Object = c10::intrusive_ptr<c10::ivalue::Object>;
  struct Flag {
    [[nodiscard]] bool now() const { return object->slots()[slot].toBool(); }
    void set(bool training) const { object->setSlot(slot, training); }
    std::string module;
    Object object;
    std::size_t slot;
  };
  struct Attribute {  // a parameter, a buffer, or a plain tensor, which is taken for a buffer
    [[nodiscard]] const at::Tensor& now() const;
    Object object;
    std::size_t slot;
    KnownTensor known;
  };
  void read(const std::string& name, const Object& object);

  std::vector<Flag> flags_;  // that of the module itself first; those without one have none
  std::vector<Attribute> attributes_;
};

}  // namespace pianola::callable
