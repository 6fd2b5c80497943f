#pragma once
#include <pianola/callable/captured_call.hpp>
#include <pianola/callable/eager_run.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/callable/host_parts.hpp>
#include <pianola/callable/input_buffers.hpp>
#include <pianola/callable/leaf_set.hpp>
#include <pianola/callable/output_origin.hpp>
#include <pianola/callable/result_copies.hpp>
#include <pianola/callable/step_gradients.hpp>
#include <pianola/callable/undo.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number_slots.hpp>
#include <pianola/graph/outside_guard.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// A capture on the tape failed, and other ranks have taken part in it: the call cannot be made again eagerly.
class OutOfStep : public UsageError {
 public:
  using UsageError::UsageError;
};

/// The step, or function, leaves a gradient in the memory of a static input, which other graphs write: it can be captured with inputs of
/// its own.
class HeldInput : public UsageError {
 public:
  using UsageError::UsageError;
};

/// The step cannot be captured on gradients of its own.
class NoOwnGradients : public UsageError {
 public:
  using UsageError::UsageError;
};

/// What the run of a step before its capture got from what a capture does not run.
struct RunBefore {
  const std::vector<c10::IValue>& reads;
  const std::vector<graph::IslandNotes>& islands;
  /// Of reads that replays are to check; nullptr: none.
  const std::vector<c10::IValue>* checked = nullptr;
  /// Whether it computed gradients, or stepped an optimizer.
  bool trains = true;
};

/// A function that trains by itself, captured whole.
class StepGraph final : public CapturedCall {
 public:
  /// The tensors of its result, given static inputs.
  using Step = std::function<std::vector<at::Tensor>(std::span<const at::Tensor> inputs)>;

  /// @param spared  For each input whether it may require grad, because the step sends it none; of fewer: the rest may not.
  /// @param buffers  Of static inputs; nullptr: they have memory of their own. See Note [Static inputs that graphs share].
  /// @param own_gradients  Leaves into whose `p.grad` others put other tensors at each call. See Note [Gradients of a step].
  StepGraph(c10::Device device, std::span<const at::Tensor> inputs, const std::vector<bool>& spared,
            OutputPolicy output, LeafSet own_gradients, InputBuffers* buffers);

  /// @param leaves   Whose gradients the step may use.
  /// @param accept   Refuses, by an exception, what the recorded run did; empty: anything will do. It may call bind_numbers().
  /// @throws UsageError, CaptureError  All is as before. NoOwnGradients, UncheckedReads, HeldInput: without these, it may be captured.
  void capture(const Step& step, const std::vector<at::Tensor>& leaves, const RunBefore& before, CaptureOptions options,
               const std::function<void(const EagerRun&)>& accept);

  [[nodiscard]] bool is_stale() const override {
    return !diverged_.empty() || !graph_.captured() || !outside_->intact();
  }
  [[nodiscard]] std::string why_stale() const override;
  /// After a capture that was made for no call: other ranks take part in the next replay, too.
  void forget_recorded_call() noexcept { communicates_ = false; }
  /// After a capture. @param bind  Where it has slots.
  void bind_numbers(std::span<const graph::NumberSample> samples,
                    const std::function<std::vector<graph::NumberSlot>(graph::NumberEvidence)>& bind);
  [[nodiscard]] bool set_numbers(std::span<const c10::IValue> values) override;
  [[nodiscard]] bool is_free() const override { return gradients_->are_as_captured(); }
  [[nodiscard]] LeafSet replaced_gradients() const override { return gradients_->replaced(); }
  /// Besides, @throws graph::OtherValue  A check of a read ended it; all is as before the call.
  [[nodiscard]] std::vector<at::Tensor> replay(std::span<const at::Tensor> inputs) override;
  /// The first half of replay(): what is launched. @throws GuardError, ReplayError, graph::OtherValue  As replay().
  void launch(std::span<const at::Tensor> inputs);
  /// Before launch(): of what results() gives out, those that are copies.
  [[nodiscard]] ResultCopies copies_of_results() const;
  /// The second half: what the launch returns, as OutputPolicy says.
  [[nodiscard]] std::vector<at::Tensor> results(std::span<const at::Tensor> inputs, ResultCopies& copies) const;
  /// Whether results() gives the same tensors each time.
  [[nodiscard]] bool has_static_results() const noexcept { return has_static_results_; }
  [[nodiscard]] std::vector<at::Tensor> static_inputs() const override { return inputs_; }
  [[nodiscard]] std::vector<BranchInfo> branches() const override;
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }

 private:
  void launch_once(std::span<const at::Tensor> inputs, bool have_run);
  void take_back(bool have_run);
  void launch_with_parts(std::span<const at::Tensor> inputs, bool have_run);
  void take_back_from(const HostPart& first) const;
  void keep_parts();
  [[nodiscard]] bool may_be_taken_back() const noexcept { return reads_ || undo_.has_value(); }
  void check_inputs(std::span<const at::Tensor> inputs, const std::vector<bool>& spared) const;
  void check(const CallWatch& watch) const;
  void keep_results(const std::vector<at::Tensor>& results, const CallWatch& watch);

  MadeMemory::References references_;  // of all that follows
  Graph graph_;
  OutputPolicy output_;
  LeafSet own_gradients_;
  bool shares_inputs_;
  std::vector<at::Tensor> inputs_;   // static
  std::vector<at::Tensor> outputs_;  // static; each once, also where it is returned twice
  std::vector<at::Tensor> regions_;  // static
  std::vector<at::Tensor> copied_;   // of both, what a call gets copies of
  OutputOrigins origins_;
  std::vector<std::size_t> output_of_leaf_;  // for each tensor of the result
  bool has_static_results_ = false;
  std::optional<StepGradients> gradients_;
  std::optional<graph::OutsideGuard> outside_;
  std::vector<HostPart> parts_;
  bool reads_ = false;           // some part does
  std::optional<Undo> undo_;     // where replays check reads
  bool parts_have_run_ = false;  // for the next launch: in the capture
  bool communicates_ = false;    // for the next launch: other ranks have taken part in it, in the capture
  graph::NumberSlots numbers_;
  bool has_its_numbers_ = false;  // for the next launch: those of the capture
  // While accept() runs:
  const EagerRun* recorded_ = nullptr;
  std::span<const at::Tensor> recorded_results_;
  std::string diverged_;  // what a part did in place of what it did in the capture
};

}  // namespace pianola::callable
