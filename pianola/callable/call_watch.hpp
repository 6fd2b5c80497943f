#pragma once
#include <pianola/graph/host_tensors.hpp>
#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

namespace pianola::callable {

/// Sees what one run of a function does to tensors that it did not make: which it reads, and whether it trains.
class CallWatch final : public trace::OpObserver {
 public:
  explicit CallWatch(std::span<const at::Tensor> inputs);

  [[nodiscard]] trace::OpInterest interest() const override { return {.host_numbers = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;
  void on_taken_apart(const trace::OpSpan& call) override;

  /// Whether gradients were accumulated in leaves, or leaves that require grad were written: a step of training.
  [[nodiscard]] bool trains() const noexcept { return trains_; }
  /// An input that was written in place.
  [[nodiscard]] std::optional<std::size_t> written_input() const noexcept { return written_input_; }
  /// Whether the run made this tensor's memory.
  [[nodiscard]] bool made(const at::Tensor& tensor) const;

  /// Memory that the run made and that somebody holds still, with the number of the operation that made it.
  struct Made {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t operation;
    bool in_backward;
  };
  [[nodiscard]] std::vector<Made> made_and_held() const;

  /// Tensors that it used, and neither made nor was given; each once.
  [[nodiscard]] const std::vector<at::Tensor>& outside() const noexcept { return outside_; }
  /// Those of them that gradients are accumulated in, and those that are made of tensors.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;
  [[nodiscard]] std::vector<at::Tensor> outside_but_leaves() const;
  [[nodiscard]] const graph::HostTensors& host_tensors() const noexcept { return host_tensors_; }
  [[nodiscard]] const graph::RecurrentDropout& dropout() const noexcept { return dropout_; }

  /// A tensor, and the first operation that used its values.
  struct Use {
    const at::Tensor& tensor;
    const trace::OpInfo* info;
    std::uint64_t operation;  // OpSpan::number
    std::size_t position;     // counted from 1 in the order of the run
    bool is_gradient;         // that another call left, and that this one accumulated into
  };
  /// One of them whose values it used and that nobody else holds any more after the run; nothing if there is none.
  /// @param others  Memory of gradients that a replay may find in another place; those do not count.
  [[nodiscard]] std::optional<Use> dropped(const std::unordered_set<const c10::StorageImpl*>& others) const;

 private:
  void note_outside(const trace::OpSpan& op, const at::Tensor& given);
  void forget_early(const trace::OpSpan& op, const c10::StorageImpl* storage);
  void note_write(const trace::OpSpan& op, const at::Tensor& tensor);

  ska::flat_hash_map<const c10::StorageImpl*, std::size_t> inputs_;
  trace::StorageSet made_;
  trace::StorageSet numbers_;  // of the host, that the run turned into tensors
  struct Maker {
    std::uint64_t operation;
    bool in_backward;
  };
  ska::flat_hash_map<const c10::StorageImpl*, Maker> made_by_;
  ska::flat_hash_set<const c10::StorageImpl*> leaf_memory_;
  std::vector<at::Tensor> leaves_of_tensors_;
  struct Reader {
    const trace::OpInfo* info;
    std::uint64_t operation;
    std::size_t position;
  };
  ska::flat_hash_map<const c10::StorageImpl*, Reader> read_;  // or written, by whom first
  ska::flat_hash_set<const c10::StorageImpl*> gradients_;     // found, and accumulated into
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  // Memory that was first seen inside an operation, by what that called for itself, with the operation's number.
  ska::flat_hash_map<const c10::StorageImpl*, std::uint64_t> early_;
  std::vector<at::Tensor> outside_;
  graph::HostTensors host_tensors_;
  graph::RecurrentDropout dropout_;
  std::optional<std::size_t> written_input_;
  std::size_t operations_ = 0;
  bool trains_ = false;
};

}  // namespace pianola::callable
