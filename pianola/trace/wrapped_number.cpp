#include <pianola/trace/wrapped_number.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>

namespace pianola::trace {

std::optional<WrappedNumber> wrapped_number(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
  const at::Tensor& number = value.toTensor();
  const c10::TensorImpl* impl = number.unsafeGetTensorImpl();
  if (!impl->is_wrapped_number() || !number.device().is_cpu()) return std::nullopt;
  if (!number.has_storage() || impl->key_set().has(c10::DispatchKey::Python)) return std::nullopt;
  switch (number.scalar_type()) {
    case at::kBool:
      return *number.const_data_ptr<bool>();
    case at::kLong:
      return *number.const_data_ptr<std::int64_t>();
    case at::kDouble:
      return *number.const_data_ptr<double>();
    case at::kComplexDouble:
      return std::complex<double>(*number.const_data_ptr<c10::complex<double>>());
    default:
      return std::nullopt;
  }
}

}  // namespace pianola::trace
