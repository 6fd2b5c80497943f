#pragma once
#include <pianola/core/error.hpp>
#include <pianola/graph/host_tensors.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/graph/placement.hpp>
#include <pianola/graph/private_tensors.hpp>
#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph {

/// Notes the tensors from outside the step that its operations use, without keeping any alive.
class OutsideTensors final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override {
    return {.outputs = true, .host_numbers = true};  // OpSpan::memory needs them
  }
  void on_op_begin(const trace::OpSpan& op) override;

  [[nodiscard]] const HostTensors& host_tensors() const noexcept { return host_tensors_; }

  /// Those that are still there.
  [[nodiscard]] std::vector<at::Tensor> alive() const;

 private:
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  std::vector<trace::WeakTensor> tensors_;
  HostTensors host_tensors_;
};

/// Sees in one tight loop whether the tensors that a graph uses from outside are still what it uses: each at its
/// address, of its shape and strides, as differentiable as it was, and held by somebody. One that nobody holds any more was replaced: whoever made
/// the graph reads another one by now.
class OutsideGuard {
 public:
  /// Keeps none of them alive, and watches those that live on without us.
  /// @param names  What people call some of them.
  explicit OutsideGuard(std::vector<at::Tensor> tensors, std::span<const NamedTensor> names = {});

  /// Watches too that each of these leaves keeps the gradient that it has now.
  void watch_gradients(const std::vector<at::Tensor>& leaves);
  /// Watches too that tensors of the CPU that a graph of another device computed with keep the values that they have now.
  void watch_values(const HostTensors& used);
  /// Watches too that recurrent dropout draws what eager calls would draw. Not part of offence(): a Graph refuses that by
  /// itself.
  void watch_dropout(RecurrentDropout dropout) { dropout_ = std::move(dropout); }

  [[nodiscard]] bool intact() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return watched_.size(); }
  /// "a Float tensor of shape [16] that the function reads was replaced"; empty where all is
  /// intact.
  [[nodiscard]] std::string difference() const;
  /// Why a replay is refused. Only where not intact().
  [[nodiscard]] Diagnosis offence() const;

 private:
  struct Watched {
    trace::WeakTensor tensor;
    const c10::TensorImpl* impl;
    Placement placement;
    bool requires_grad;
    const c10::TensorImpl* leaf = nullptr;  // whose gradient it is; nullptr: no gradient
    std::vector<std::byte> values = {};     // that it has to keep; none: those are read by each replay
    [[nodiscard]] bool has_same_values() const noexcept;
    [[nodiscard]] Placement::Change change() const noexcept;
    [[nodiscard]] const char* other_change() const noexcept;  // in words; only where not intact() and change() is none
    [[nodiscard]] bool intact() const noexcept;
  };
  struct Words {
    std::string name;         // "'cache'", where it has one
    std::string description;  // "a Float tensor of shape [16]"
    bool parameter;
  };
  [[nodiscard]] std::size_t first_changed() const noexcept;
  [[nodiscard]] bool owners_live() const noexcept;
  [[nodiscard]] bool add_owner(const at::Tensor& tensor);

  std::vector<PrivateTensors::Owner> owners_;  // in place of their tensors; see Note [Private tensors]
  std::vector<Watched> watched_;
  std::vector<Words> words_;
  std::vector<trace::WeakTensor> leaves_;  // so that the addresses in `watched_` stay theirs
  RecurrentDropout dropout_;
};

}  // namespace pianola::graph
