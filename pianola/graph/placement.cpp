#include <pianola/graph/placement.hpp>

namespace pianola::graph {

Placement::Placement(const c10::TensorImpl& impl) : address_(trace::address_of(impl)) {
  const c10::StorageImpl* const storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return;
  begin_ = storage->data();
  offset_ = impl.storage_offset();
  dimensions_ = impl.sizes().size();
  sizes_and_strides_.append(impl.sizes().begin(), impl.sizes().end());
  sizes_and_strides_.append(impl.strides().begin(), impl.strides().end());
}

Placement::Change Placement::change(const c10::TensorImpl& impl) const noexcept {
  if (is_of(impl)) return Change::none;
  if (trace::address_of(impl) == nullptr && address_ != nullptr) return Change::freed;
  return has_geometry_of(impl) ? Change::memory : Change::geometry;
}

const char* in_words(Placement::Change change) noexcept {
  switch (change) {
    case Placement::Change::none:
      return "it is as it was";
    case Placement::Change::freed:
      return "its memory was freed (its storage was resized)";
    case Placement::Change::geometry:
      return "its shape or strides were changed in place (t_(), resize_() or .data = ...)";
    case Placement::Change::memory:
      return "its memory was replaced (.data = ..., set_() or a resized storage)";
  }
  return "";
}

}  // namespace pianola::graph
