#include <pianola/verify/op_values.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>

#include <ATen/ops/clone.h>

#include <algorithm>
#include <exception>

namespace pianola::verification {
namespace {

// The same that a tape replays: a view of memory of its own is a result.
bool computes(const trace::OpSpan& op) {
  if (op.info->is_empty) return false;
  if (!op.info->is_view) return true;
  bool fresh = false;
  for (const c10::IValue& value : op.outputs) {
    trace::for_each_tensor(
        value, [&](const at::Tensor& tensor) { fresh = fresh || op.memory->makes(op, trace::storage_of(tensor)); });
  }
  return fresh;
}

}  // namespace

std::vector<at::Tensor> written_arguments(const trace::OpInfo& info, c10::ArrayRef<c10::IValue> inputs) {
  std::vector<at::Tensor> written;
  trace::for_each_argument(info, inputs, [&](const at::Tensor& tensor, bool is_written) {
    if (is_written) written.push_back(tensor);
  });
  return written;
}

std::vector<at::Tensor> copy_values(c10::ArrayRef<c10::IValue> outputs, const std::vector<at::Tensor>& written) {
  const trace::QuietScope quiet;
  std::vector<at::Tensor> copies;
  const auto copy = [&](const at::Tensor& tensor) {
    copies.push_back(trace::storage_of(tensor) == nullptr ? at::Tensor() : tensor.detach().clone());
  };
  std::vector<const void*> returned;
  for (const c10::IValue& value : outputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      returned.push_back(trace::address_of(tensor));
      copy(tensor);
    });
  }
  for (const at::Tensor& tensor : written) {
    if (std::ranges::find(returned, trace::address_of(tensor)) == returned.end()) copy(tensor);
  }
  return copies;
}

// The handles are dropped at the end of the operation, before anybody asks who holds the tensor.
void OpValues::on_op_begin(const trace::OpSpan& op) {
  running_.push_back({.key = op.number, .number = ++begun_, .written = written_arguments(*op.info, op.inputs)});
}

void OpValues::on_op_end(const trace::OpSpan& op) {
  const auto found = std::ranges::find(running_, op.number, &Running::key);
  if (found == running_.end()) return;
  const Running running = std::move(*found);
  running_.erase(found);
  if (!trouble_.empty() || !computes(op)) return;
  try {
    all_.push_back({.info = op.info, .number = running.number, .values = copy_values(op.outputs, running.written)});
  } catch (const std::exception& error) {
    trouble_ = error.what();
    all_.clear();  // to let the step go on
  }
}

}  // namespace pianola::verification
