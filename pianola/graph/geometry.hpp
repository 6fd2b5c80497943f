#pragma once
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace pianola::graph {

/// Where the first element of a tensor lies; nullptr where it has no memory. A view into a buffer that `.data` moved to
/// another place of the same buffer has the storage that it had.
inline const void* memory_of(const c10::TensorImpl& impl) noexcept {
  const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->data() == nullptr) return nullptr;
  return static_cast<const std::byte*>(storage->data()) +
         impl.storage_offset() * static_cast<std::int64_t>(impl.itemsize());
}

/// Sizes and strides of a tensor with memory, to see whether they were changed in place: by t_(), resize_(), as_strided_(),
/// or by other data in the same memory. A graph goes on with those of its capture.
class Geometry {
 public:
  explicit Geometry(const c10::TensorImpl& impl) : values_(impl.sizes().begin(), impl.sizes().end()) {
    values_.append(impl.strides().begin(), impl.strides().end());
  }

  /// Word by word, because each parameter is asked at each call: comparing the arrays calls memcmp.
  [[nodiscard]] bool is_of(const c10::TensorImpl& impl) const noexcept {
    const c10::IntArrayRef now = impl.sizes();
    const std::size_t dimensions = now.size();
    if (values_.size() != 2 * dimensions) return false;
    const std::int64_t *sizes = now.data(), *strides = impl.strides().data(), *known = values_.data();
    bool same = true;
    for (std::size_t i = 0; i < dimensions; ++i) {
      same &= sizes[i] == known[i];
      same &= strides[i] == known[dimensions + i];
    }
    return same;
  }

 private:
  c10::SmallVector<std::int64_t, 8> values_;  // sizes, then strides
};

}  // namespace pianola::graph
