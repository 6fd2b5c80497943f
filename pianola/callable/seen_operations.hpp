#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::callable {

/// While it lives, tells of the operations of this thread, and of autograd's threads for it, as they end. It changes nothing about
/// them: a mode of torch's dispatch would, since formulas of torch ask whether there is one. To be destroyed on the thread that made it.
class PIANOLA_API SeenOperations {
 public:
  struct Operation {
    std::string name;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> written;  ///< Of these.
    std::vector<at::Tensor> outputs;
    c10::IValue number;            ///< That it returned; none where it returned tensors.
    bool reads = false;            ///< It asks the device for values: the host learns the number, or the shapes.
    bool is_copy_to_host = false;  ///< The host learns the values of what it returns.
    bool draws = false;
    bool is_backward = false;
  };
  using OnEnd = std::function<void(const Operation& operation)>;

  explicit SeenOperations(OnEnd on_end);
  SeenOperations(const SeenOperations&) = delete;
  SeenOperations& operator=(const SeenOperations&) = delete;
  ~SeenOperations();

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
};

}  // namespace pianola::callable
