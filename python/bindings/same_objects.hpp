#pragma once
#include <torch/csrc/utils/pybind.h>

#include <pianola/trace/weak_tensor.hpp>

#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <vector>

namespace pianola::python {

/// nullptr where it is none.
inline const at::Tensor* as_tensor(PyObject* object) {
  return THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

/// Objects that have to be the very ones that they were. None is kept alive. Of tensors no other one has the address while this
/// is known; of containers what is in them has to be asked as well.
class SameObjects {
 public:
  void add(PyObject* object) {
    const at::Tensor* const tensor = as_tensor(object);
    all_.push_back(identity_of(object));
    if (tensor != nullptr) tensors_.emplace_back(tensor->getIntrusivePtr());
  }

  /// In the order of add().
  class Check {
   public:
    explicit Check(const SameObjects& known) : known_(known) {}
    bool is_next(PyObject* object) { return !is_end() && known_.all_[next_++] == identity_of(object); }
    [[nodiscard]] bool is_end() const { return next_ == known_.all_.size(); }

   private:
    const SameObjects& known_;
    std::size_t next_ = 0;
  };

 private:
  static const void* identity_of(PyObject* object) {
    const at::Tensor* const tensor = as_tensor(object);
    return tensor == nullptr ? static_cast<const void*>(object) : tensor->unsafeGetTensorImpl();
  }

  std::vector<const void*> all_;
  std::vector<trace::WeakTensor> tensors_;
};

}  // namespace pianola::python
