#include <pianola/trace/wrapped_number.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <c10/core/DispatchKey.h>
#include <c10/core/DynamicCast.h>
#include <c10/core/TensorImpl.h>

namespace pianola::trace {
namespace {

bool is_real(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
}

// Those that can be read.
bool is_number_type(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) || is_real(type) || type == at::kComplexFloat ||
         type == at::kComplexDouble;
}

}  // namespace

bool is_number(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return tensor.device().is_cpu() && tensor.has_storage() && !impl->key_set().has(c10::DispatchKey::Python) &&
         !impl->has_symbolic_sizes_strides() && tensor.dim() == 0 && is_number_type(tensor.scalar_type()) &&
         bytes_are_values(tensor) && address_of(tensor) != nullptr;
}

WrappedNumber number_in(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const void* const bytes = address_of(tensor);
  if (type == at::kBool) return c10::fetch_and_cast<bool>(type, bytes);
  if (at::isIntegralType(type, /*includeBool=*/false)) return c10::fetch_and_cast<std::int64_t>(type, bytes);
  if (is_real(type)) return c10::fetch_and_cast<double>(type, bytes);
  return std::complex<double>(c10::fetch_and_cast<c10::complex<double>>(type, bytes));
}

std::optional<WrappedNumber> wrapped_number(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
  const at::Tensor& number = value.toTensor();
  if (!number.unsafeGetTensorImpl()->is_wrapped_number() || !is_number(number)) return std::nullopt;
  return number_in(number);
}

}  // namespace pianola::trace
