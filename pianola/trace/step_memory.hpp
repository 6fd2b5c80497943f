#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pianola::trace {

/// Tells memory that the step made itself from memory that was there before.
///
/// A result is new memory when no input of its operation has the same storage. What the step frees stays known, so that
/// memory which no operation makes (from_blob, NumPy's) is not taken for it.
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
        if (makes(op, storage)) made_.insert(tensor.storage());
      });
    }
    std::erase_if(inputs_, [&](const auto& input) { return input.first == op.number; });
  }

  [[nodiscard]] bool made(const at::Tensor& tensor) const { return made_.contains(storage_of(tensor)); }
  /// Whether the operation, at its end, has made this memory.
  [[nodiscard]] bool makes(const OpSpan& op, const c10::StorageImpl* storage) const {
    return storage != nullptr && !op.info->adopts_memory && !was_input(op, storage);
  }

 private:
  [[nodiscard]] bool was_input(const OpSpan& op, const c10::StorageImpl* storage) const {
    return std::find(inputs_.begin(), inputs_.end(), std::pair(op.number, storage)) != inputs_.end();
  }

  StorageSet made_;
  // Operation number and storage, of the operations that are running: more than one where several threads run them.
  std::vector<std::pair<std::uint64_t, const c10::StorageImpl*>> inputs_;
};

}  // namespace pianola::trace
