#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::trace {

/// Tells memory that the step made itself from memory that was there before.
///
/// A result is new memory when no input of its operation has the same storage. The set holds identities, not owners: a
/// freed storage's address may come back for another one, but that one is made inside the step as well.
class StepMemory {
 public:
  /// Call at the begin of each operation, before note_results().
  void note_inputs(const OpSpan& op) {
    for (const c10::IValue& value : op.inputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { inputs_.emplace_back(op.number, storage_of(tensor)); });
    }
  }

  /// Call at the end of each operation.
  void note_results(const OpSpan& op) {
    for (const c10::IValue& value : op.outputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        const c10::StorageImpl* storage = storage_of(tensor);
        if (makes(op, storage)) made_.insert(storage);
      });
    }
    std::erase_if(inputs_, [&](const auto& input) { return input.first == op.number; });
  }

  [[nodiscard]] bool made(const at::Tensor& tensor) const { return made_.count(storage_of(tensor)) != 0; }
  /// Whether the operation, at its end, has made this memory.
  [[nodiscard]] bool makes(const OpSpan& op, const c10::StorageImpl* storage) const {
    return storage != nullptr && !op.info->adopts_memory && !was_input(op, storage);
  }

 private:
  [[nodiscard]] bool was_input(const OpSpan& op, const c10::StorageImpl* storage) const {
    return std::find(inputs_.begin(), inputs_.end(), std::pair(op.number, storage)) != inputs_.end();
  }

  ska::flat_hash_set<const c10::StorageImpl*> made_;
  // Operation number and storage, of the operations that are running: more than one where several threads run them.
  std::vector<std::pair<std::uint64_t, const c10::StorageImpl*>> inputs_;
};

}  // namespace pianola::trace
