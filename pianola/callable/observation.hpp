#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/custom_backwards.hpp>
#include <pianola/callable/eager_run.hpp>
#include <pianola/callable/forward_gradients.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/kept_tensors.hpp>
#include <pianola/callable/observed_backward.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/trace/operation_log.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// The capture did otherwise than the call before it.
class OtherPath : public UsageError {
 public:
  using UsageError::UsageError;
};

/// What a function did in one eager call: what its capture builds on. Keeps no tensor alive, so that those that the
/// function replaces are noticed.
class Observation {
 public:
  /// @param results    The tensors that it returned.
  /// @param gradients  Of the parameters that the call before has shown.
  Observation(EagerRun run, const HostEffects& effects, std::span<const at::Tensor> inputs,
              const std::vector<at::Tensor>& results, const GradientsBefore& gradients = {});

  [[nodiscard]] GraphedKind kind() const noexcept { return kind_; }
  /// It has nothing to do with gradients, nor has its code: another thread may train its parameters meanwhile. Nobody looks at theirs.
  [[nodiscard]] bool computes_only() const noexcept { return computes_only_; }
  /// Where the function computes.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// What it was handed out; nullopt: that was not noted, or could not be.
  [[nodiscard]] const std::optional<memory::StepRun>& memory() const noexcept { return memory_; }
  /// For each input whether it has a history, and was sent no gradient.
  [[nodiscard]] const std::vector<bool>& spared_inputs() const noexcept { return spared_inputs_; }
  /// Parameters that it read and that are still there.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;
  /// These, and those whose gradients alone its code changes.
  [[nodiscard]] std::vector<at::Tensor> leaves_of_gradients() const;
  /// Parameters whose gradients the next call is compared by. Not those of a function that only computes, where its caller names none:
  /// another thread may train them meanwhile.
  [[nodiscard]] std::vector<at::Tensor> leaves_to_compare() const;
  /// What it did to gradients, where the backward pass runs outside.
  [[nodiscard]] const GradientChanges& gradients() const noexcept { return gradients_; }

  /// Why no graph of it could be right, whatever happens; empty where one could.
  [[nodiscard]] const std::string& lasting() const noexcept { return lasting_; }
  /// Why none could be, if other calls do so too: a first call may make what later ones find.
  [[nodiscard]] const std::string& passing() const noexcept { return passing_; }
  /// The same, where what keeps it from being captured goes when the calls before this one are graphs: it adds to gradients that
  /// they make anew each time, and drops them.
  [[nodiscard]] const std::string& awaited() const noexcept { return awaited_; }
  [[nodiscard]] bool begins_anew() const noexcept { return begins_anew_; }
  /// What it did otherwise than the call before; empty where nothing.
  /// @param numbers_count  Whether other numbers are otherwise.
  [[nodiscard]] std::string difference_from(const Observation& before, bool numbers_count = true) const;
  [[nodiscard]] const trace::OperationLog& log() const noexcept { return log_; }
  [[nodiscard]] const CustomBackwards& backwards() const noexcept { return backwards_; }
  [[nodiscard]] const ObservedBackward& backward() const noexcept { return backward_; }
  [[nodiscard]] const graph::RecurrentDropout& dropout() const noexcept { return dropout_; }
  /// Makes passive parts of the host active ones in later calls, where they have to be: this call's numbers are not those of the
  /// call before, or it used tensors of the host.
  void note_varying_parts(const Observation& before) const;
  /// What parts of the host read, in their order.
  [[nodiscard]] const std::vector<c10::IValue>& values_read() const noexcept { return values_read_; }
  /// What parts that stay eager gave, in their order.
  [[nodiscard]] const std::vector<graph::IslandNotes>& islands() const noexcept { return islands_; }
  /// Whether any of them was found, not marked: a replay may have to be taken back.
  [[nodiscard]] bool has_found_parts() const {
    return std::any_of(islands_.begin(), islands_.end(), [](const graph::IslandNotes& one) { return one.is_found; });
  }
  /// What reads gave that replays check.
  [[nodiscard]] const std::vector<c10::IValue>& checked_values() const noexcept { return checked_values_; }
  /// Whether it read any value of the device.
  [[nodiscard]] bool reads_values() const noexcept { return reads_values_; }
  [[nodiscard]] bool runs_compiled() const noexcept { return runs_compiled_; }
  /// torch.compile made code in it.
  [[nodiscard]] bool compiled() const noexcept { return compiled_; }
  /// Another rank was late, so that what came after may not have been observed.
  [[nodiscard]] bool waited_for_a_rank() const noexcept { return waited_for_a_rank_; }
  /// A scaler read of an overflow, or Python says so: the call is no example for a capture.
  [[nodiscard]] bool is_unlike_captures() const noexcept { return is_unlike_captures_; }
  /// It copies pageable memory of the host to the device, which its capture has to keep.
  [[nodiscard]] bool copies_from_host() const noexcept { return copies_from_host_; }
  /// It communicates with other ranks; by DistributedDataParallel.
  [[nodiscard]] bool communicates() const noexcept { return communicates_; }
  /// Whether code of the user's works on gradients in a part that replays run.
  [[nodiscard]] bool shows_gradients() const noexcept { return shows_gradients_; }
  [[nodiscard]] bool is_data_parallel() const noexcept { return is_data_parallel_; }
  /// Some of its inputs are on the CPU, and it computes on another device.
  [[nodiscard]] bool has_inputs_elsewhere() const noexcept { return inputs_elsewhere_; }
  /// Positions of inputs whose memory is that of no result, gradient or place that replays fill: who holds them afterwards keeps them.
  [[nodiscard]] const std::vector<std::size_t>& inputs_to_let_go() const noexcept { return inputs_to_let_go_; }
  [[nodiscard]] KeptTensors take_kept() noexcept { return std::move(kept_); }

  [[nodiscard]] std::string difference_to_capture(const trace::OperationLog& capture) const;
  /// @param any_path  Other operations are accepted; other numbers are not.
  /// @param numbers_count  Whether other numbers are otherwise.
  /// @throws OtherPath  The capture did otherwise.
  void check_capture(const trace::OperationLog& capture, bool any_path, bool numbers_count = true) const;
  /// @param recorded  The run of the capture, which is over.
  /// @throws UsageError  It gave a tensor memory of its own. See Note [Tensors that are given memory of a run].
  void check_given_memory(const EagerRun& recorded, std::span<const at::Tensor> static_inputs) const;
  /// The same of backward passes; where the call's has not run yet, nothing is known.
  void check_captured_backwards(const CustomBackwards& capture, bool any_path) const;
  /// Frees what only messages need.
  void forget_places() { log_.forget_places(); }

 private:
  GraphedKind kind_;
  bool computes_only_;
  c10::Device device_;
  std::optional<memory::StepRun> memory_;
  std::vector<trace::WeakTensor> leaves_;
  std::vector<trace::WeakTensor> more_leaves_;  // of gradients
  std::vector<trace::WeakTensor> told_leaves_;  // by its caller
  bool is_told_;                                // which these are
  GradientChanges gradients_;
  std::vector<EarlierTensor> given_;  // to its operations, or memory
  std::vector<bool> spared_inputs_;
  KeptTensors kept_;
  std::vector<std::size_t> inputs_to_let_go_;
  CustomBackwards backwards_;
  ObservedBackward backward_;
  std::string lasting_;
  std::string passing_;
  std::string awaited_;
  graph::RecurrentDropout dropout_;
  std::vector<std::function<void()>> passive_parts_;
  bool parts_must_be_active_;
  std::vector<c10::IValue> values_read_;
  std::vector<graph::IslandNotes> islands_;
  std::vector<c10::IValue> checked_values_;
  bool reads_values_ = false;
  bool runs_compiled_ = false;
  bool compiled_;
  bool waited_for_a_rank_;
  bool is_unlike_captures_;
  bool copies_from_host_;
  bool communicates_;
  bool shows_gradients_;
  bool is_data_parallel_;
  bool inputs_elsewhere_;
  bool begins_anew_;
  trace::OperationLog log_;
};

}  // namespace pianola::callable
