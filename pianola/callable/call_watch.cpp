#include <pianola/callable/call_watch.hpp>

#include <pianola/trace/arguments.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/made_of_tensors.hpp>
#include <pianola/trace/real_leaf.hpp>
#include <pianola/trace/references.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/uses_values.hpp>

#include <functional>

namespace pianola::callable {
namespace {

// A view of a parameter that a backward pass makes says that it is a leaf that requires grad, too.
bool is_parameter(const at::Tensor& tensor) { return tensor.is_leaf() && tensor.requires_grad() && !tensor.is_view(); }

}  // namespace

CallWatch::CallWatch(std::span<const at::Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs_.insert({trace::storage_of(inputs[i]), i});
}

void CallWatch::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  dropout_.on_op_begin(op);
  host_tensors_.on_op_begin(op);
  trains_ = trains_ || (op.backward != nullptr && op.backward->accumulates());
  trace::for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
    note_outside(op, tensor);
    if (written) note_write(op, tensor);
  });
}

void CallWatch::on_taken_apart(const trace::OpSpan& call) {
  trains_ = trains_ || (call.backward != nullptr && call.backward->accumulates());
  trace::for_each_argument(*call.info, call.inputs, [&](const at::Tensor& tensor, bool written) {
    if (!trace::is_made_of_tensors(tensor) || !is_parameter(tensor)) return;
    trains_ = trains_ || written;
    if (seen_.insert(tensor.unsafeGetTensorImpl()).second) leaves_of_tensors_.push_back(tensor);
  });
}

void CallWatch::on_op_end(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.outputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* storage = trace::storage_of(tensor);
      if (!op.memory->makes(op, storage)) return;
      if (!early_.empty()) forget_early(op, storage);
      if (!made_.insert(tensor.storage())) return;
      made_by_.insert({storage, {.operation = op.number, .in_backward = op.backward != nullptr}});
    });
  }
}

std::vector<CallWatch::Made> CallWatch::made_and_held() const {
  std::vector<Made> result;
  made_.for_each_alive([&](const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) {
    const Maker& maker = made_by_.at(storage._unsafe_get_target());
    result.push_back({.storage = storage, .operation = maker.operation, .in_backward = maker.in_backward});
  });
  return result;
}

bool CallWatch::made(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  return made_.contains(storage) || numbers_.contains(storage);
}

void CallWatch::note_outside(const trace::OpSpan& op, const at::Tensor& given) {
  const at::Tensor tensor = trace::real_leaf(given);
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  if (op.memory->made(tensor) || inputs_.count(storage) != 0) return;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;  // a number of the host, made for this operation
  const bool is_copied = trace::takes_from_host(*op.info, op.inputs, tensor) && op.memory->is_of_step(tensor);
  if (is_copied || op.memory->is_host_number(tensor)) {
    numbers_.insert(tensor.storage());
    return;
  }
  if (is_parameter(tensor)) leaf_memory_.insert(storage);
  if (trace::uses_values(*op.info))
    read_.insert({storage, {.info = op.info, .operation = op.number, .position = operations_}});
  if (!seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
  outside_.push_back(tensor);
  if (op.around != 0) early_[storage] = op.around;
}

// A hook on saved tensors is given the result of an operation that has not ended: it looked like memory from outside.
void CallWatch::forget_early(const trace::OpSpan& op, const c10::StorageImpl* storage) {
  const auto early = early_.find(storage);
  if (early == early_.end() || early->second != op.number) return;
  early_.erase(early);
  read_.erase(storage);
  std::erase_if(outside_, [&](const at::Tensor& tensor) {
    if (trace::storage_of(tensor) != storage) return false;
    seen_.erase(tensor.unsafeGetTensorImpl());
    return true;
  });
}

// By memory: optimizers of torch's C++ interface write through `p.data()`, which is another tensor.
void CallWatch::note_write(const trace::OpSpan& op, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  if (op.memory->made(tensor)) return;
  if (op.backward != nullptr && op.backward->accumulates()) gradients_.insert(storage);
  if (const auto input = inputs_.find(storage); input != inputs_.end()) written_input_ = input->second;
  if (leaf_memory_.count(storage) != 0) trains_ = true;
}

std::vector<at::Tensor> CallWatch::leaves() const {
  std::vector<at::Tensor> result = outside_;
  std::erase_if(result, std::not_fn(is_parameter));
  result.insert(result.end(), leaves_of_tensors_.begin(), leaves_of_tensors_.end());
  return result;
}

std::vector<at::Tensor> CallWatch::outside_but_leaves() const {
  std::vector<at::Tensor> result = outside_;
  std::erase_if(result, is_parameter);
  return result;
}

// Memory is held where anybody looks at it, be it by another tensor than the one that was read (p.data(), a view).
std::optional<CallWatch::Use> CallWatch::dropped(const std::unordered_set<const c10::StorageImpl*>& others) const {
  struct Memory {
    std::size_t tensors = 0;  // of ours that look at it
    bool held = false;        // one of them is somebody else's as well
  };
  ska::flat_hash_map<const c10::StorageImpl*, Memory> all;
  for (const at::Tensor& tensor : outside_) {
    Memory& memory = all[trace::storage_of(tensor)];
    ++memory.tensors;
    memory.held = memory.held || trace::references_to(tensor) > 1;
  }
  std::optional<Use> gradient;  // only where there is nothing else
  for (const at::Tensor& tensor : outside_) {
    if (!tensor.has_storage() || tensor.numel() == 0) continue;
    const auto reader = read_.find(trace::storage_of(tensor));
    if (reader == read_.end()) continue;
    const Memory& memory = all[trace::storage_of(tensor)];
    if (memory.held || trace::references_to(tensor.storage()) != memory.tensors) continue;
    const auto& [info, operation, position] = reader->second;
    const Use use{.tensor = tensor,
                  .info = info,
                  .operation = operation,
                  .position = position,
                  .is_gradient = gradients_.count(trace::storage_of(tensor)) != 0};
    if (!use.is_gradient && others.contains(trace::storage_of(tensor))) continue;
    if (!use.is_gradient) return use;
    if (!gradient) gradient.emplace(use);
  }
  return gradient;
}

}  // namespace pianola::callable
