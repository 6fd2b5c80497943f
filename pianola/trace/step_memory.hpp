#pragma once
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/host_numbers.hpp>
#include <pianola/trace/op_observer.hpp>
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
/// memory which no operation makes (from_blob, NumPy's) is not taken for it. What a call hidden inside an operation makes,
/// and somebody holds although the operation has not returned it, is lost to those who see operations only.
class StepMemory {
 public:
  /// Call at the begin of each operation, before note_results().
  void note_inputs(const OpSpan& op) {
    for (const c10::IValue& value : op.inputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { inputs_.emplace_back(op.number, storage_of(tensor)); });
    }
    numbers_.note_writes(*op.info, op.inputs);
  }

  /// nullptr: is_host_number() of none.
  void listen_to(AllocationLog* allocations) noexcept { numbers_.listen_to(allocations); }

  /// Call at the end of each operation.
  void note_results(const OpSpan& op) {
    for (const c10::IValue& value : op.outputs) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        const c10::StorageImpl* storage = storage_of(tensor);
        if (makes(op, storage)) made_.insert(tensor.storage());
      });
    }
    std::erase_if(inputs_, [&](const auto& input) { return input.first == op.number; });
    if (!hidden_.empty()) note_lost(op);
  }

  /// Call at the end of each call hidden inside an operation.
  void note_hidden(const OpSpan& around, const OpInfo& hidden, c10::ArrayRef<c10::IValue> results) {
    const auto& returns = hidden.schema().returns();
    for (std::size_t i = 0; i < std::min(results.size(), returns.size()); ++i) {
      if (returns[i].alias_info() != nullptr) continue;  // memory of an argument
      for_each_tensor(results[i], [&](const at::Tensor& tensor) {
        if (!makes(around, storage_of(tensor)) || made(tensor)) return;
        if (!hidden_.empty() && hidden_.back().storage == storage_of(tensor)) return;
        hidden_.push_back({around.number, around.info, storage_of(tensor), tensor.storage().getWeakStorageImpl()});
      });
    }
  }

  /// The operation that lost this memory; nullptr: none did.
  [[nodiscard]] const OpInfo* maker_of_lost(const at::Tensor& tensor) const {
    const c10::StorageImpl* storage = storage_of(tensor);
    const auto found =
        std::find_if(lost_.begin(), lost_.end(), [&](const Hidden& one) { return one.storage == storage; });
    return found == lost_.end() || made(tensor) ? nullptr : found->around;
  }

  [[nodiscard]] bool made(const at::Tensor& tensor) const { return made_.contains(storage_of(tensor)); }
  /// Whether it is a number of the host, as a tensor that was made for the step without an operation, and that none of its
  /// operations writes or has written, or one that a part of the host computes. See Note [Numbers that torch turns into
  /// tensors] and Note [Calls of the host].
  [[nodiscard]] bool is_host_number(const at::Tensor& tensor) const {
    if (const HostCalls* host = HostCalls::current(); host != nullptr && host->gives(tensor)) return true;
    return numbers_.contains(tensor) && !made(tensor);
  }
  /// Whether it is memory of the CPU that the step made: by an operation or without one, as torch.tensor() does.
  [[nodiscard]] bool is_of_step(const at::Tensor& tensor) const { return made(tensor) || numbers_.is_fresh(tensor); }
  /// Whether the operation, at its end, has made this memory.
  [[nodiscard]] bool makes(const OpSpan& op, const c10::StorageImpl* storage) const {
    return storage != nullptr && !op.info->adopts_memory && !was_input(op, storage);
  }

 private:
  [[nodiscard]] bool was_input(const OpSpan& op, const c10::StorageImpl* storage) const {
    return std::find(inputs_.begin(), inputs_.end(), std::pair(op.number, storage)) != inputs_.end();
  }

  // Memory that a call inside an operation made. Nobody else gets its identity; see Note [Identities of memory that may
  // be freed] in storage_set.hpp.
  struct Hidden {
    std::uint64_t operation;
    const OpInfo* around;
    const c10::StorageImpl* storage;
    c10::weak_intrusive_ptr<c10::StorageImpl> reference;
  };

  // At the end of an operation whose results are known: what else of its hidden memory is alive?
  void note_lost(const OpSpan& op) {
    std::erase_if(hidden_, [&](const Hidden& one) {
      if (one.operation != op.number) return false;
      if (!one.reference.expired() && !made_.contains(one.storage)) lost_.push_back(one);
      return true;
    });
  }

  StorageSet made_;
  HostNumbers numbers_;
  // Operation number and storage, of the operations that are running: more than one where several threads run them.
  std::vector<std::pair<std::uint64_t, const c10::StorageImpl*>> inputs_;
  std::vector<Hidden> hidden_;  // of operations that run
  std::vector<Hidden> lost_;
};

}  // namespace pianola::trace
