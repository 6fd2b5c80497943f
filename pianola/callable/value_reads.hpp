#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::callable {

/// While it lives, tells of operations of this thread, and of autograd's threads for it, that ask the device for values, as they end.
/// It changes nothing about them: a mode of torch's dispatch would, since formulas of torch ask whether there is one. To be destroyed
/// on the thread that made it.
class PIANOLA_API ValueReads {
 public:
  struct Read {
    std::string operation;
    c10::IValue number;               ///< That it returned; none where it returned tensors.
    std::vector<at::Tensor> tensors;  ///< Those: the host learns their shapes.
    bool is_copy = false;             ///< To the host, which learns their values.
    bool is_backward = false;
  };
  using OnRead = std::function<void(const Read& read)>;

  explicit ValueReads(OnRead on_read);
  ValueReads(const ValueReads&) = delete;
  ValueReads& operator=(const ValueReads&) = delete;
  ~ValueReads();

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
};

}  // namespace pianola::callable
