#include <pianola/callable/gradient_parts.hpp>

#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/parts.hpp>

namespace pianola::callable {

GradientParts::GradientParts(const at::Tensor& gradient) {
  if (!gradient.defined() || !trace::is_made_of_tensors(gradient)) return;
  trace::for_each_part(gradient, [&](const at::Tensor& part) {
    all_.push_back({.tensor = trace::WeakTensor(part.getIntrusivePtr()),
                    .placement = graph::Placement(*part.unsafeGetTensorImpl())});
  });
}

// Of Python, as who holds a tensor object holds no more of its memory than the gradient does.
void GradientParts::count_references() {
  for (One& one : all_) one.references = trace::references_of_python(at::Tensor(one.tensor.lock()));
}

bool GradientParts::are_of(const at::Tensor& gradient) const {
  if (all_.empty()) [[likely]]
    return true;
  std::size_t next = 0;
  bool same = true;
  trace::for_each_part(gradient, [&](const at::Tensor& part) {
    same = same && next < all_.size() && part.unsafeGetTensorImpl() == all_[next].tensor._unsafe_get_target() &&
           all_[next].placement.is_of(*part.unsafeGetTensorImpl()) &&
           trace::references_of_python(part) <= all_[next].references;
    ++next;
  });
  return same && next == all_.size();
}

}  // namespace pianola::callable
