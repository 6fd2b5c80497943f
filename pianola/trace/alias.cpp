#include <pianola/trace/alias.hpp>

#include <pianola/trace/made_of_tensors.hpp>

#include <ATen/core/List.h>

namespace pianola::trace {

at::Tensor alias_of(const at::Tensor& tensor) {
  if (is_made_of_tensors(tensor)) return made_anew(tensor);
  if (!tensor.has_storage()) return tensor;
  at::Tensor alias(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  if (tensor.requires_grad()) alias.unsafeGetTensorImpl()->set_requires_grad(true);
  return alias;
}

c10::IValue alias_values(const c10::IValue& value) { return ArgumentAliases().of(value); }

c10::IValue ArgumentAliases::of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(alias(tensor)) : value;
  }
  if (!value.isList()) return value;
  // A list is shared by reference: copy it, so that the aliases do not end up in the caller's.
  c10::List<c10::IValue> copy(value.toList().copy());
  for (std::size_t i = 0; i < copy.size(); ++i) copy.set(i, of(copy.get(i)));
  return copy;
}

at::Tensor ArgumentAliases::alias(const at::Tensor& tensor) {
  for (const auto& [one, alias] : known_) {
    if (one == tensor.unsafeGetTensorImpl()) return alias;
  }
  return known_.emplace_back(tensor.unsafeGetTensorImpl(), make_(tensor)).second;
}

}  // namespace pianola::trace
