#include <pianola/trace/made_of_tensors.hpp>

#include <pianola/trace/plain_check.hpp>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace pianola::trace {
namespace {

TensorLook& tensor_look() noexcept {
  static TensorLook look = {};
  return look;
}

}  // namespace

bool is_made_of_tensors(const at::Tensor& tensor) noexcept {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.key_set().has(c10::DispatchKey::Python)) [[likely]]
    return false;
  if (oddity_in_step(tensor) != Oddity::subclass) return false;
  if (impl.has_storage() && impl.unsafe_storage().data_ptr().get() != nullptr) return false;
  const auto look = tensor_look().is_of_torch_distributed;
  return look != nullptr && look(tensor);
}

std::vector<at::Tensor> tensors_inside_of(const at::Tensor& tensor) {
  const auto look = tensor_look().tensors_inside_of;
  return look == nullptr ? std::vector<at::Tensor>() : look(tensor);
}

std::size_t references_of_python(const at::Tensor& tensor) noexcept {
  const auto look = tensor_look().references_of;
  return look == nullptr ? 0 : look(tensor);
}

at::Tensor made_anew(const at::Tensor& tensor) {
  const auto look = tensor_look().made_anew;
  return look == nullptr ? tensor : look(tensor);
}

bool is_taken_apart_by_python(const at::Tensor& tensor) {
  return is_made_of_tensors(tensor) && !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::Python);
}

bool computes_shapes_alone() { return modes_in_words(Oddity::dispatch_mode).ends_with("(FakeTensorMode)"); }

void set_tensor_look(const TensorLook& look) noexcept { tensor_look() = look; }

}  // namespace pianola::trace
