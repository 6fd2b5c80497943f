#pragma once
#include <pianola/trace/made_of_tensors.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace pianola::trace {

// Note [References of Python]
// A tensor that Python has seen keeps its Python object, which counts as one more reference to it whether or not anything
// in Python still holds it (torch's Note [PyObject preservation for Tensor and Storages]). Callers that ask "does anyone
// else hold this tensor?" must not count that reference.

/// The references that are somebody's: in C++, or of a Python object that Python code holds. The caller has one itself.
inline std::size_t references_to(const at::Tensor& tensor) {
  const std::size_t count = tensor.use_count();
  // torch would ask under Python's lock, which a call that is replayed has given back: once for each gradient.
  const std::size_t of_python = references_of_python(tensor);
  const bool is_its_own =
      of_python == 0 ? tensor.unsafeGetTensorImpl()->pyobj_slot()->has_unique_reference() : of_python == 1;
  return is_its_own ? count - 1 : count;
}
/// Those in C++ alone, of which the caller has one: what Python holds is the tensor's object.
inline std::size_t references_in_cpp(const at::Tensor& tensor) {
  const bool is_pythons = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
  return tensor.use_count() - (is_pythons ? 1 : 0);
}
/// Of its memory.
inline std::size_t references_to(const c10::Storage& storage) {
  const auto count = static_cast<std::size_t>(storage.use_count());
  return storage.unsafeGetStorageImpl()->pyobj_slot()->has_unique_reference() ? count - 1 : count;
}

}  // namespace pianola::trace
