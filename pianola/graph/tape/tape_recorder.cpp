#include <pianola/graph/tape/tape.hpp>

#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

namespace pianola::graph {
namespace {

// Note [A tape holds aliases]
// The tape keeps shallow copies of the tensors: they hold the memory and this moment's sizes, but neither the autograd
// graph nor a reference to the user's tensor object, whose count autograd looks at to decide whether it may take a
// gradient over instead of copying it. requires_grad is kept because some kernels choose by it.
at::Tensor alias_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor;  // TapeWatch refuses it; copying a sparse tensor would call operators
  at::Tensor alias(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  if (tensor.requires_grad()) alias.unsafeGetTensorImpl()->set_requires_grad(true);
  return alias;
}

c10::IValue alias_values(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(alias_of(tensor)) : value;
  }
  if (!value.isList()) return value;
  // A list is shared by reference: copy it, so that the aliases do not end up in the caller's.
  c10::List<c10::IValue> copy(value.toList().copy());
  for (std::size_t i = 0; i < copy.size(); ++i) copy.set(i, alias_values(copy.get(i)));
  return copy;
}

}  // namespace

void TapeRecorder::on_op_begin(const trace::OpSpan& op) {
  TapeOp entry{.handle = op.info->handle, .inputs = {}, .outputs = {}};
  entry.info = op.info;
  entry.number = ++begun_;
  entry.grad_mode = at::GradMode::is_enabled();
  entry.inputs.reserve(op.inputs.size());
  for (const c10::IValue& value : op.inputs) entry.inputs.push_back(alias_values(value));
  running_.emplace_back(op.number, std::move(entry));
}

void TapeRecorder::on_op_end(const trace::OpSpan& op) {
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const auto& entry) { return entry.first == op.number; });
  TapeOp entry = std::move(found->second);
  running_.erase(found);
  // It threw, and the step may live with that: a replay has nothing to run.
  if (op.outputs.empty() && !op.info->schema().returns().empty()) return;

  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const c10::IValue& value = op.outputs[i];
    entry.outputs.push_back(alias_values(value));
    const auto note_fresh = [&](const c10::IValue& result, std::int64_t position) {
      if (!result.isTensor() || !result.toTensor().defined()) return;
      if (op.memory->makes(op, trace::storage_of(result.toTensor()))) entry.fresh.emplace_back(i, position);
    };
    if (!value.isList()) {
      note_fresh(value, -1);
      continue;
    }
    std::int64_t position = 0;
    for (const c10::IValue& result : value.toListRef()) note_fresh(result, position++);
  }
  tape_.add(std::move(entry));
}

}  // namespace pianola::graph
