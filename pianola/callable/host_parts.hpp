#pragma once
#include <pianola/callable/host_part.hpp>
#include <pianola/callable/last_writes.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

namespace pianola::callable {

/// Whether a part may read what the graph computes, but for parts within it; Note [Parts that read].
enum class HostPartReads : std::uint8_t {
  nothing,
  overflow,  ///< 0 says that all is well: a run that read something else is no example for a capture.
  values,
};

/// What a part is that begins.
struct HostPartOptions {
  bool runs_half = false;  ///< In a capture: not all that it does on the host. So the first launch runs it again, too.
  HostPart::Run run = {};  ///< What a replay runs in its place; empty: the part is passive, and only looked at.
  std::function<void()> on_varying = {};        ///< Told where it would have to be active.
  std::span<const at::Tensor> parameters = {};  ///< Whose gradients it uses.
  HostPartReads reads = HostPartReads::nothing;
  /// All that it does on the host is taken back with what `save` puts back: it is torch's own code, and calls nothing of the user's.
  bool may_run_twice = false;
  std::shared_ptr<HostShortcut> shortcut = {};  ///< Of `run`.
  std::function<HostPart::Run()> save = {};     ///< Gives what puts its objects back as they are now.
};

/// The parts of the host in one run of a step, found while it runs.
class PIANOLA_API HostParts final : public trace::OpObserver {
 public:
  HostParts() = default;
  /// Of a capture, which may have to be taken back. @param expected  What reads are taken to give: what they gave the run before.
  explicit HostParts(std::vector<c10::IValue> expected) : is_capture_(true), expected_(std::move(expected)) {}

  /// While it lives, current() finds them.
  class Open {
   public:
    explicit Open(HostParts& parts);
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open();

   private:
    HostParts& parts_;
    HostParts* outer_;
  };
  /// Those of the run that is observed on this thread; nullptr: none is.
  [[nodiscard]] static HostParts* current() noexcept;

  /// A part begins. One within another belongs to that. @return  How many were open before.
  int begin(c10::Device device, HostPartOptions options);
  /// It ends, and what was left open in it. @param depth  What begin() gave.
  /// @return  Whether it made history for autograd, or ran a backward pass: then no graph could be right.
  bool end(int depth);

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = true, .host_numbers = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  /// Why no graph could be right; nothing where one could.
  [[nodiscard]] std::optional<Diagnosis> obstacle() const;
  /// The run ends. @return  Of passive parts: what tells that they have to be active.
  [[nodiscard]] std::vector<std::function<void()>> passive() const { return passive_; }
  /// Whether tensors of the host were used in a passive part, or somebody holds what it computed.
  [[nodiscard]] bool must_be_active() const;
  /// Whether an operation of a part has made this memory.
  [[nodiscard]] bool made(const c10::StorageImpl* storage) const { return made_.contains(storage); }
  [[nodiscard]] bool any_active() const noexcept { return !parts_.empty(); }
  /// Whether an operation that is recorded now is one of an active part.
  [[nodiscard]] bool is_in_active() const noexcept { return scope_ != nullptr && active_; }
  /// Whether what is called now is called by a part.
  [[nodiscard]] bool is_in_part() const noexcept { return depth_ > 0; }
  /// Parameters whose gradients its parts use, and that are still there.
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return alive(parameters_); }
  /// Those of them whose gradients code of the user's works on: not only torch's own.
  [[nodiscard]] std::vector<at::Tensor> parameters_of_users_code() const { return alive(parameters_of_users_code_); }
  /// Memory of the gradients that its parts found. A step may drop them; see Note [Gradients of a step].
  [[nodiscard]] const std::unordered_set<const c10::StorageImpl*>& gradients_found() const noexcept {
    return gradients_found_;
  }
  /// Whether a read told of an overflow.
  [[nodiscard]] bool read_overflow() const noexcept { return read_overflow_; }
  /// What reads gave, in their order.
  [[nodiscard]] const std::vector<c10::IValue>& values_read() const noexcept { return values_read_; }
  [[nodiscard]] std::vector<HostPart> take() { return std::move(parts_); }
  /// The run is taken back.
  void put_back() const;

 private:
  [[nodiscard]] static std::vector<at::Tensor> alive(const std::vector<trace::WeakTensor>& tensors);
  void end_innermost();
  void let_read(bool lets);
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void on_read(const trace::OpInfo& op, torch::jit::Stack& stack);
  void note_made(const trace::OpSpan& op);
  [[nodiscard]] bool holds_results_of_passive() const;

  std::shared_ptr<trace::HostCalls> calls_ = std::make_shared<trace::HostCalls>();
  std::unique_ptr<trace::HostCalls::Scope> scope_;
  std::optional<trace::CallGate> gate_;  // where the open part reads
  int depth_ = 0;
  bool is_capture_ = false;
  bool active_ = false;
  HostPartReads reads_ = HostPartReads::nothing;
  std::vector<c10::IValue> expected_;
  std::vector<c10::IValue> values_read_;
  LastWrites writes_;
  std::size_t pieces_ = 0;  // that reads leave of the graph
  bool has_read_values_ = false;
  bool runs_twice_ = false;        // what may not: a part behind one that reads
  bool reads_in_passive_ = false;  // a part would have to be active for that
  bool is_of_gpu_ = false;         // the part that is open
  bool read_overflow_ = false;
  bool makes_history_ = false;  // an active part does
  bool draws_where_it_reads_ = false;
  bool describes_in_place_ = false;
  bool moves_parameters_ = false;
  std::vector<trace::WeakTensor> parameters_;  // whose gradients parts use, passive ones too
  std::vector<trace::WeakTensor> parameters_of_users_code_;
  std::unordered_set<const c10::StorageImpl*> gradients_found_;
  // Of the open part, with their memory as it began.
  std::vector<std::pair<trace::WeakTensor, const c10::StorageImpl*>> placed_;
  std::vector<HostPart> parts_;  // active ones
  std::vector<std::function<void()>> passive_;
  std::vector<HostPart::Run> passive_undo_;       // of a capture: state of an optimizer that its step has made
  trace::StorageSet made_;                        // by operations of parts
  trace::StorageSet passive_made_;                // of passive ones
  std::vector<trace::WeakTensor> passive_given_;  // tensors of that memory
  // Operations of the open part that run: their numbers, their calls, and the tensors that are their arguments.
  struct Running {
    std::uint64_t number;
    std::size_t call;
    std::vector<const c10::TensorImpl*> arguments;
  };
  std::vector<Running> running_;
};

}  // namespace pianola::callable
