#pragma once
#include <pianola/trace/tensors_of.hpp>

#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>

namespace pianola::graph {

/// Where a tensor lies, and by which sizes and strides it is read. A graph goes on with those of its capture, whatever
/// `.data = ...`, set_(), t_() or resize_() make of the tensor; its storage alone does not tell, since `.data` may move a
/// view to another place of one buffer. One without memory (undefined, sparse) has none.
class Placement {
 public:
  /// Where more than one is true, the first.
  enum class Change : std::uint8_t { none, freed, geometry, memory };

  Placement() = default;
  explicit Placement(const c10::TensorImpl& impl);

  [[nodiscard]] const void* address() const noexcept { return address_; }
  /// Asked of each parameter at each call.
  [[nodiscard]] bool is_of(const c10::TensorImpl& impl) const noexcept {
    const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr) [[unlikely]]
      return address_ == nullptr;  // its strides may not be asked for
    const bool same = storage->data() == begin_ && impl.storage_offset() == offset_;
    return (same || trace::address_of(impl) == address_) && has_geometry_of(impl);
  }
  /// What became of the tensor; none where is_of().
  [[nodiscard]] Change change(const c10::TensorImpl& impl) const noexcept;

 private:
  // Word by word: comparing the arrays calls memcmp.
  [[nodiscard]] bool has_geometry_of(const c10::TensorImpl& impl) const noexcept {
    const c10::IntArrayRef sizes = impl.sizes();
    const std::size_t dimensions = sizes.size();
    if (dimensions != dimensions_) return false;
    const std::int64_t *now = sizes.data(), *strides = impl.strides().data(), *known = sizes_and_strides_.data();
    bool same = true;
    for (std::size_t i = 0; i < dimensions; ++i) {
      same &= now[i] == known[i];
      same &= strides[i] == known[dimensions + i];
    }
    return same;
  }

  const void* address_ = nullptr;
  const void* begin_ = nullptr;  // of its storage
  std::int64_t offset_ = 0;      // in it, in elements
  std::size_t dimensions_ = 0;
  c10::SmallVector<std::int64_t, 8> sizes_and_strides_;
};

/// "its memory was freed (its storage was resized)".
[[nodiscard]] const char* in_words(Placement::Change change) noexcept;

}  // namespace pianola::graph
