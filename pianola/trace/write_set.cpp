#include <pianola/trace/write_set.hpp>

#include <pianola/trace/allocator_events.hpp>
#include <pianola/trace/arguments.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/real_leaf.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/storage_bytes.hpp>

#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace pianola::trace {
namespace {

// In memory of the host that torch's allocator does not know: the write that is about to come cannot be stopped.
at::Tensor copy_beside_torch(const at::Tensor& bytes) {
  const std::size_t count = bytes.nbytes();
  void* const memory = std::malloc(count);
  TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "no memory for a copy of ", count,
                   " bytes that the step writes");
  std::memcpy(memory, bytes.const_data_ptr(), count);
  return at::from_blob(memory, bytes.sizes(), &std::free, bytes.options());
}

at::Tensor copy_of(const at::Tensor& bytes) {
  try {
    return bytes.clone();
  } catch (const c10::Error&) {
    return bytes.is_cpu() ? copy_beside_torch(bytes) : bytes.cpu();
  }
}

}  // namespace

void WriteSet::on_op_begin(const OpSpan& op) {
  for_each_argument(*op.info, op.inputs, [&](const at::Tensor& tensor, bool written) {
    if (differentiates_ && tensor.requires_grad() && tensor.is_leaf()) note_leaf(op, real_leaf(tensor));
    note_outside(op, tensor);
    if (written && save_writes_) note_write(op, tensor);
  });
}

void WriteSet::on_op_end(const OpSpan& op) {
  if (!save_writes_) return;
  for (const c10::IValue& value : op.outputs) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const c10::StorageImpl* storage = storage_of(tensor);
      if (op.memory->makes(op, storage)) made_by_runs_.insert(tensor.storage());
    });
  }
}

void WriteSet::begin_run() {
  for (Leaf& leaf : leaves_) {
    if (!leaf.gradient.defined()) leaf.tensor.mutable_grad().reset();
  }
}

void WriteSet::note_leaf(const OpSpan& op, const at::Tensor& tensor) {
  if (op.memory->made(tensor)) return;
  const auto [entry, is_new] = leaf_at_.insert({tensor.unsafeGetTensorImpl(), leaves_.size()});
  if (!is_new) return;
  leaves_.push_back({.tensor = tensor, .gradient = tensor.grad()});
  if (const at::Tensor& gradient = leaves_.back().gradient; gradient.defined()) note_outside(op, gradient);
}

void WriteSet::note_outside(const OpSpan& op, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && !op.memory->made(tensor) && !made_by_runs_.contains(storage)) {
    outside_.insert(tensor.storage());
  }
}

void WriteSet::note_write(const OpSpan& op, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || storage->nbytes() == 0 || op.memory->made(tensor)) return;
  if (made_by_runs_.contains(storage)) {
    wrote_lazy_state_ = true;
    return;
  }
  save(tensor.storage());
}

void WriteSet::save(const c10::Storage& storage) {
  if (storage.nbytes() == 0 || storage.data() == nullptr ||
      !saved_at_.insert({storage.unsafeGetStorageImpl(), saved_.size()}).second)
    return;
  const QuietScope quiet;
  const OwnMemory own;
  saved_.push_back({.target = storage, .copy = copy_of(bytes_of(storage))});
  bytes_ += storage.nbytes();
}

void WriteSet::put_bytes_back() {
  const QuietScope quiet;
  // The last first: two storages may share memory (numpy), and the copy of the second has what was written to the first.
  for (; !saved_.empty(); saved_.pop_back()) {
    const Saved& saved = saved_.back();
    // A storage that a run made larger or smaller keeps its size: what both have in common is put back.
    const at::Tensor bytes = bytes_of(saved.target);
    const std::int64_t common = std::min(bytes.numel(), saved.copy.numel());
    bytes.narrow(0, 0, common).copy_(saved.copy.narrow(0, 0, common));
  }
  saved_at_.clear();
  made_by_runs_.clear();
}

void WriteSet::restore() {
  put_bytes_back();
  for (Leaf& leaf : leaves_) leaf.tensor.mutable_grad() = leaf.gradient;
  forget_leaves();
}

void WriteSet::forget_leaves() {
  leaves_.clear();
  leaf_at_.clear();
  outside_.clear();
}

std::vector<at::Tensor> WriteSet::leaves_with_new_gradients() const {
  std::vector<at::Tensor> found;
  for (const Leaf& leaf : leaves_) {
    const at::Tensor& now = leaf.tensor.grad();
    if (now.defined() && !now.is_same(leaf.gradient)) found.push_back(leaf.tensor);
  }
  return found;
}

void WriteSet::restore_keeping_gradients() {
  put_bytes_back();
  const QuietScope quiet;
  std::vector<at::Tensor> fresh;
  for (Leaf& leaf : leaves_) {
    at::Tensor& now = leaf.tensor.mutable_grad();
    const bool replaced = now.defined() && !now.is_same(leaf.gradient);
    if (!replaced) {
      now = leaf.gradient;
    } else if (outside_.contains(storage_of(now))) {
      continue;  // its bytes are back
    } else if (leaf.gradient.defined() && leaf.gradient.sizes() == now.sizes() && !now._is_zerotensor()) {
      now.copy_(leaf.gradient);
    } else {
      if (!now._is_zerotensor()) fresh.push_back(now);
    }
  }
  if (!fresh.empty()) at::_foreach_zero_(fresh);
  forget_leaves();
}

}  // namespace pianola::trace
