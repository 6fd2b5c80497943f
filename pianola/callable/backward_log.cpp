#include <pianola/callable/backward_log.hpp>

#include <pianola/trace/tensors_of.hpp>

namespace pianola::callable {

void BackwardLog::on_op_begin(const trace::OpSpan& op) {
  ops_.push_back(op.info);
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) { types_.push_back(tensor.scalar_type()); });
  }
}

}  // namespace pianola::callable
