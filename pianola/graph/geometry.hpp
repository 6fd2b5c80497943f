#pragma once
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace pianola::graph {

/// Sizes and strides of a tensor with memory, to see whether they were changed in place: by t_(), resize_(), as_strided_(),
/// or by other data in the same memory. A graph goes on with those of its capture.
class Geometry {
 public:
  explicit Geometry(const c10::TensorImpl& impl) : values_(impl.sizes().begin(), impl.sizes().end()) {
    values_.append(impl.strides().begin(), impl.strides().end());
  }

  [[nodiscard]] bool is_of(const c10::TensorImpl& impl) const noexcept {
    const c10::IntArrayRef known(values_), sizes = impl.sizes();
    return known.size() == 2 * sizes.size() && known.slice(0, sizes.size()) == sizes &&
           known.slice(sizes.size()) == impl.strides();
  }

 private:
  c10::SmallVector<std::int64_t, 8> values_;  // sizes, then strides
};

}  // namespace pianola::graph
