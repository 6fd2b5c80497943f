#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

namespace pianola {
namespace graph {
class Placement;
}

/// What one parameter or buffer was when a ModuleView was made, for implementations of it.
class PIANOLA_API KnownTensor {
 public:
  [[nodiscard]] static KnownTensor parameter(std::string name, const at::Tensor& tensor);
  /// @throws UsageError  It requires grad.
  [[nodiscard]] static KnownTensor buffer(std::string name, const at::Tensor& tensor);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const at::Tensor& tensor() const noexcept { return tensor_; }
  /// Whether it is a parameter that requires grad.
  [[nodiscard]] bool is_differentiable() const noexcept { return placement_ == nullptr && requires_grad_; }

  /// Whether `now` is this tensor, requires grad as then, and, for a buffer, looks at the same memory in the
  /// same way.
  [[nodiscard]] bool is(const at::Tensor& now) const;
  /// "buffer 'mean': the module has another tensor now"; nothing if `now` is it.
  [[nodiscard]] std::optional<std::string> difference(const at::Tensor& now) const;

 private:
  KnownTensor(std::string name, at::Tensor tensor, bool is_buffer);

  std::string name_;
  at::Tensor tensor_;
  std::shared_ptr<const graph::Placement> placement_;  // nullptr for parameters: it is watched for all callables alike
  bool requires_grad_;
};

}  // namespace pianola
