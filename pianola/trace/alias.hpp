#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace pianola::trace {

// Note [What holds aliases]
// A tape, and whoever else keeps tensors of a step, keeps shallow copies of them: they hold the memory and this moment's
// sizes, but neither the autograd graph nor a reference to the user's tensor object, whose count autograd looks at to decide
// whether it may take a gradient over instead of copying it. requires_grad is kept because some kernels choose by it.

/// One of a tensor without memory (sparse) is the tensor itself: copying it would call operators. One of a tensor that is made of
/// tensors is another one of its class, of the same tensors.
[[nodiscard]] at::Tensor alias_of(const at::Tensor& tensor);
/// Of all tensors in the value; in lists, too. Other values are the same.
[[nodiscard]] c10::IValue alias_values(const c10::IValue& value);

/// Aliases of the arguments of one call. A tensor that is given twice has one alias: some kernels ask whether two of their
/// arguments are the same tensor, and compute in another way then (_native_multi_head_attention).
class ArgumentAliases {
 public:
  using Make = at::Tensor (*)(const at::Tensor& tensor);
  /// @param make  Makes the alias of one tensor.
  explicit ArgumentAliases(Make make = &alias_of) : make_(make) {}

  /// Of all tensors in the value; in lists, too.
  [[nodiscard]] c10::IValue of(const c10::IValue& value);

 private:
  at::Tensor alias(const at::Tensor& tensor);

  Make make_;
  std::vector<std::pair<const c10::TensorImpl*, at::Tensor>> known_;
};

}  // namespace pianola::trace
