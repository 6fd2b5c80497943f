#pragma once
#include <pianola/callable/module_view.hpp>

#include <optional>
#include <string>
#include <vector>

namespace pianola::callable {

/// A function that is no module: always training, nothing to compare.
class FunctionView final : public ModuleView {
 public:
  [[nodiscard]] bool training() const override { return true; }
  void set_training(bool /*training*/) const override {}
  [[nodiscard]] std::vector<bool> flags() const override { return {}; }
  void set_flags(const std::vector<bool>& /*flags*/) const override {}
  [[nodiscard]] bool has_flags(const std::vector<bool>& /*flags*/) const override { return true; }
  [[nodiscard]] std::vector<std::string> differing_flags(const std::vector<bool>& /*flags*/) const override {
    return {};
  }
  [[nodiscard]] bool has_its_parameters() const override { return true; }
  [[nodiscard]] std::vector<std::string> parameter_differences() const override { return {}; }
  [[nodiscard]] std::vector<at::Tensor> differentiable_parameters() const override { return {}; }
  [[nodiscard]] std::optional<std::string> name_of(const at::Tensor& /*parameter*/) const override {
    return std::nullopt;
  }
};

}  // namespace pianola::callable
