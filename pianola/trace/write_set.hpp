#pragma once
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola::trace {

/// Watches runs of a step, keeps a copy of what it is about to write outside the memory it makes itself, and puts it
/// back. Covers tensors (parameters, buffers, optimizer state, gradients) and whether a leaf's `.grad` is defined.
///
/// The first write to a storage copies all of it, on the device, or to host memory where the device has no room left.
class WriteSet final : public OpObserver {
 public:
  /// Off while a CUDA capture runs: nothing executes then, so only gradients are watched.
  void save_writes(bool save) noexcept { save_writes_ = save; }
  /// Off: the step makes no gradients, and nobody looks at those of its leaves.
  void differentiates(bool it_does) noexcept { differentiates_ = it_does; }

  void on_op_begin(const OpSpan& op) override;
  void on_op_end(const OpSpan& op) override;

  /// Before each run of the step: what earlier runs made is no longer the step's own, and gradients that were undefined
  /// before the first run are undefined again, so that each run takes the path of the first.
  void begin_run();

  /// Saves a storage now, if it is not saved yet.
  void save(const c10::Storage& storage);

  /// Puts all bytes back, on the current stream, and gradients to the tensors they were. Never throws for lack of
  /// memory. The set is empty afterwards.
  void restore();

  /// As restore(), but a gradient that was undefined before and is defined now stays, filled with zeros; where the
  /// step replaced a defined one, the new one stays and gets the old values. One in memory from outside of the step, a buffer's or
  /// another parameter's gradient, stays with the values that the memory had.
  void restore_keeping_gradients();

  /// Leaves that have a gradient now and had none before the first run: those that restore_keeping_gradients() keeps.
  [[nodiscard]] std::vector<at::Tensor> leaves_with_new_gradients() const;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Memory that an earlier run made and a later one wrote: state that the step creates lazily. It cannot be put back.
  [[nodiscard]] bool wrote_lazy_state() const noexcept { return wrote_lazy_state_; }

 private:
  struct Saved {
    c10::Storage target;
    at::Tensor copy;
  };
  struct Leaf {
    at::Tensor tensor;
    at::Tensor gradient;  // before the first run; undefined where there was none
  };

  void note_leaf(const OpSpan& op, const at::Tensor& tensor);
  void note_outside(const OpSpan& op, const at::Tensor& tensor);
  void note_write(const OpSpan& op, const at::Tensor& tensor);
  void put_bytes_back();
  void forget_leaves();

  StorageSet made_by_runs_;  // this run's too: look at OpSpan::memory first
  StorageSet outside_;       // that operations use, or gradients lie in
  ska::flat_hash_map<const c10::StorageImpl*, std::size_t> saved_at_;
  std::vector<Saved> saved_;
  ska::flat_hash_map<const c10::TensorImpl*, std::size_t> leaf_at_;
  std::vector<Leaf> leaves_;
  std::size_t bytes_ = 0;
  bool save_writes_ = true;
  bool differentiates_ = true;
  bool wrote_lazy_state_ = false;
};

}  // namespace pianola::trace
