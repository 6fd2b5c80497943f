#include <pianola/callable/outside_guard.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace pianola::callable {
namespace {

const void* memory_of(const c10::TensorImpl& impl) { return impl.unsafe_storage().unsafeGetStorageImpl()->data(); }

}  // namespace

OutsideGuard::OutsideGuard(std::vector<at::Tensor> tensors) {
  std::vector<Watched> candidates;
  std::vector<std::string> names;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    candidates.push_back({.tensor = WeakTensor(tensor.getIntrusivePtr()),
                          .impl = impl,
                          .address = memory_of(*impl),
                          .requires_grad = impl->requires_grad()});
    names.push_back(
        fmt::format("a {} tensor of shape [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")));
  }
  tensors.clear();  // what only the run itself held is gone now
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].tensor.expired()) continue;
    watched_.push_back(std::move(candidates[i]));
    names_.push_back(std::move(names[i]));
  }
}

// The implementation is there, if empty, as long as a weak reference is.
bool OutsideGuard::Watched::intact() const noexcept {
  return !tensor.expired() && memory_of(*impl) == address && impl->requires_grad() == requires_grad;
}

bool OutsideGuard::intact() const noexcept {
  for (const Watched& watched : watched_) {
    if (!watched.intact()) return false;
  }
  return true;
}

std::string OutsideGuard::difference() const {
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    if (!watched_[i].intact()) return names_[i] + " that the function reads was replaced, frozen or unfrozen";
  }
  return {};
}

}  // namespace pianola::callable
