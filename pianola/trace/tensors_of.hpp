#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>

namespace pianola::trace {

/// Calls `visit(tensor)` for each defined tensor in a value: itself, or in a list, however deep.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& entry : value.toListRef()) for_each_tensor(entry, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& entry : value.toTupleRef().elements()) for_each_tensor(entry, visit);
  }
}

/// The identity of a tensor's memory; nullptr where it has none of its own (sparse, opaque).
inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// Address of the first element, without the checks of data_ptr(); nullptr where there is no memory.
inline const std::byte* address_of(const c10::TensorImpl& impl) {
  const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const auto* base = storage == nullptr ? nullptr : static_cast<const std::byte*>(storage->data());
  return base == nullptr ? nullptr : base + impl.storage_offset() * static_cast<std::int64_t>(impl.itemsize());
}
inline const std::byte* address_of(const at::Tensor& tensor) { return address_of(*tensor.unsafeGetTensorImpl()); }

/// Whether the bytes in memory are the tensor's values: not where they are still to be conjugated or negated (conj(),
/// resolve_neg()), and not where there is no memory, since all values are zero (autograd's zero tensors).
inline bool bytes_are_values(const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

/// Bytes from the first element to the end of the last one that the view reaches.
inline std::size_t span_bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return static_cast<std::size_t>(last + 1) * tensor.itemsize();
}

}  // namespace pianola::trace
