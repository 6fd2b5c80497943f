#include <pianola/callable/last_writes.hpp>

#include <pianola/graph/read_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>

namespace pianola::callable {

void LastWrites::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  ++running_;
  if (!op.info->name.starts_with("aten::") && op.info->name != graph::kReadCheck) last_unknown_ = operations_;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.info->writes[i] && !op.info->running_statistic[i]) continue;
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) { note(tensor); });
  }
}

void LastWrites::on_op_end(const trace::OpSpan& op) {
  if (!op.info->is_view) {
    for (const c10::IValue& output : op.outputs) {
      trace::for_each_tensor(output, [&](const at::Tensor& tensor) { note(tensor); });
    }
  }
  if (--running_ != 0) return;
  for (Write* write : not_over_) write->operation = operations_;
  not_over_.clear();
}

void LastWrites::note(const at::Tensor& tensor) {
  const c10::StorageImpl* const memory = trace::storage_of(tensor);
  if (memory == nullptr) return;
  auto known = writes_.find(memory);
  if (known == writes_.end()) {
    known = writes_.emplace(memory, Write{.memory = tensor.storage().getWeakStorageImpl(), .operation = 0}).first;
  }
  if (known->second.operation == kNotOver) return;
  known->second.operation = kNotOver;
  not_over_.push_back(&known->second);
}

std::size_t LastWrites::last_write_to(const at::Tensor& tensor) const {
  const auto known = writes_.find(trace::storage_of(tensor));
  const std::size_t written = known == writes_.end() ? 0 : known->second.operation;
  return std::min(operations_, std::max({written, last_unknown_, std::size_t{1}}));
}

}  // namespace pianola::callable
