#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <vector>

namespace pianola::trace {

/// Tells memory that the step made itself from memory that was there before.
///
/// A result is new memory when no input of its operation has the same storage. The set holds identities, not owners: a
/// freed storage's address may come back for another one, but that one is made inside the step as well.
class StepMemory {
 public:
  /// Call at the begin of each operation, before note_results().
  void note_inputs(c10::ArrayRef<c10::IValue> inputs) {
    inputs_.clear();
    for (const c10::IValue& value : inputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { inputs_.push_back(storage_of(tensor)); });
    }
  }

  /// Call at the end of each operation.
  void note_results(c10::ArrayRef<c10::IValue> outputs) {
    for (const c10::IValue& value : outputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        const c10::StorageImpl* storage = storage_of(tensor);
        if (!was_input(storage)) made_.insert(storage);
      });
    }
  }

  [[nodiscard]] bool made(const at::Tensor& tensor) const { return made_.count(storage_of(tensor)) != 0; }
  [[nodiscard]] bool was_input(const c10::StorageImpl* storage) const {
    return std::find(inputs_.begin(), inputs_.end(), storage) != inputs_.end();
  }
  [[nodiscard]] const ska::flat_hash_set<const c10::StorageImpl*>& all() const noexcept { return made_; }
  void clear() { made_.clear(); }

 private:
  ska::flat_hash_set<const c10::StorageImpl*> made_;
  std::vector<const c10::StorageImpl*> inputs_;  // of the operation that is running
};

}  // namespace pianola::trace
