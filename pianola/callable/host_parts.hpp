#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

// Note [Parts of the host]
// What an optimizer gives to its kernels it computes anew in each step: rates, bias corrections. A graph would repeat those of
// its capture. So the optimizer's step() is a part of the host: a replay runs it again, for real, but for its operations on the
// device. Each of these is recognised as the one that was captured (the same operator, the same tensors) and not made; the
// numbers that it was given go into the graph, which is launched afterwards. What the part does otherwise (its counts, its
// logs, its hooks) happens as in eager. Where it does other operations than those of the capture, the graph's operations before
// that point are run, the rest of the part runs eagerly, and then the rest of the graph. What it differentiates could not be run
// again: results of operations that are not made have no history.

// Note [Parts that read]
// A scaler's step() reads whether gradients have overflowed, and steps its optimizer if not. A replay stops there: the graph's
// operations before the read are run, the part reads for real, and goes on. Where it does nothing more, the operations that it
// did when it was captured are left out. A capture cannot read: it takes every value for 0, which says that all is well; so a
// call in which one was not is no example for a capture. The first launch of what was captured has no part run again, for they
// have run: it compares what they would have read. Where that is not 0, their work on the host is taken back and done anew.

/// One call of an operator that the graph holds, as a part of the host made it when it was captured. Tensors are aliases.
struct HostPartCall {
  const trace::OpInfo* op;
  std::size_t operation;  ///< Of the graph, counted from 1.
  torch::jit::Stack inputs;
  torch::jit::Stack outputs = {};
  std::vector<int> returned = {};         ///< For each output the argument that it is; -1: none.
  std::vector<bool> is_host_number = {};  ///< For each input; see Note [Numbers that torch turns into tensors].
};

/// A read of a value that the graph computes.
struct HostPartRead {
  std::size_t call;       ///< Of the part's: it came before this one.
  std::size_t operation;  ///< Of the graph: the last one before it.
  at::Tensor tensor;      ///< An alias.
};

/// A number that a part gave, other than the one that the graph has.
struct HostNumber {
  std::size_t operation;
  std::size_t argument;
  c10::IValue value;
};

/// What a rerun of a part tells about, while it runs.
struct HostPartListener {
  /// Whether the graph can be given another number there.
  std::function<bool(std::size_t operation, std::size_t argument)> can_set;
  /// It gave another number than before.
  std::function<void(const HostNumber& number)> number;
  /// It is about to read a value. All of the graph up to this operation has to have run when this returns.
  std::function<void(std::size_t operation)> read;
  /// After a read it did nothing more: the graph's operations from this one on, up to the part's last one, are not to be run.
  std::function<void(std::size_t operation)> left_out;
  /// It does something else than the operation of this number, which is the next one that was captured: from now on its calls
  /// are made. All of the graph before that operation has to have run when this returns. `what` it does, in words.
  std::function<void(std::size_t operation, std::string what)> diverged;
};

/// A part of the host as it was captured.
class HostPart {
 public:
  using Run = std::function<void()>;

  HostPart(Run run, std::shared_ptr<const trace::HostCalls> own) : run_(std::move(run)), own_(std::move(own)) {}

  /// Runs it again, with the gradients of the capture. What it throws comes out. @return  Whether it did as when it was captured.
  bool rerun(const HostPartListener& listener);

  /// The first launch: the part has run in the capture. @param reach  As HostPartListener::read.
  /// @return  Whether what it would have read is what the capture took it for, and it has nothing more to do.
  [[nodiscard]] bool reads_as_captured(const std::function<void(std::size_t operation)>& reach) const;
  [[nodiscard]] bool reads() const noexcept { return !reads_.empty(); }
  /// What this part and later ones did on the host in the capture is taken back: this for each, the last one first, ...
  void take_back() const;
  /// ... and then this for the first of them.
  void take_tensors_back() const { own_->put_back(values_before_); }
  /// Nothing will be taken back any more.
  void keep();
  /// After the launch: whoever holds what its operations computed (an optimizer's state does) gets memory of its own, as the
  /// next replay writes the graph's.
  void hand_out();

  /// Of the graph's operations, counted from 1, the first one behind its begin.
  [[nodiscard]] std::size_t first_operation() const noexcept { return first_; }
  /// Of the graph's operations, counted from 1, the last one before the part ended.
  [[nodiscard]] std::size_t last_operation() const noexcept { return last_; }

 private:
  friend class HostParts;
  struct Rerun;

  // A parameter of the part, with an alias of the gradient that it had; undefined where it had none.
  struct Gradient {
    trace::WeakTensor parameter;
    at::Tensor value;
  };
  class Gradients;

  Run run_;
  std::shared_ptr<const trace::HostCalls> own_;
  std::vector<Gradient> gradients_;
  std::vector<HostPartCall> calls_;
  std::vector<HostPartRead> reads_;
  std::function<void()> undo_;                   // in a capture: of what it did to its objects
  trace::HostCalls::Values values_before_ = {};  // in a capture
  bool has_host_numbers_ = false;
  bool ran_half_ = false;                 // in the capture
  trace::StorageSet made_;                // by its operations
  std::vector<trace::WeakTensor> given_;  // tensors of that memory that it was given otherwise than by calls_
  std::size_t first_ = 1;
  std::size_t last_ = 0;
};

/// What a part is that begins.
struct HostPartOptions {
  bool runs_half = false;  ///< In a capture: not all that it does on the host. So the first launch runs it again, too.
  HostPart::Run run = {};  ///< What a replay runs in its place; empty: the part is passive, and only looked at.
  std::function<void()> on_varying = {};        ///< Told where it would have to be active.
  std::span<const at::Tensor> parameters = {};  ///< Whose gradients it uses.
  bool reads = false;                           ///< It may read what the graph computes: but for parts within it.
  std::function<HostPart::Run()> save = {};     ///< Gives what puts its objects back as they are now.
};

/// The parts of the host in one run of a step, found while it runs.
class PIANOLA_API HostParts final : public trace::OpObserver {
 public:
  /// @param is_capture  The run may have to be taken back.
  explicit HostParts(bool is_capture = false) : is_capture_(is_capture) {}

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
  /// Parameters whose gradients its parts use, and that are still there.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// Whether a read gave something else than captures take it for.
  [[nodiscard]] bool read_otherwise() const noexcept { return read_otherwise_; }
  [[nodiscard]] std::vector<HostPart> take() { return std::move(parts_); }
  /// The run is taken back.
  void put_back() const;

 private:
  void end_innermost();
  void let_read(bool lets);
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void note_made(const trace::OpSpan& op);
  [[nodiscard]] bool holds_results_of_passive() const;

  std::shared_ptr<trace::HostCalls> calls_ = std::make_shared<trace::HostCalls>();
  std::unique_ptr<trace::HostCalls::Scope> scope_;
  std::optional<trace::CallGate> gate_;  // where the open part reads
  int depth_ = 0;
  bool is_capture_;
  bool active_ = false;
  bool reads_ = false;
  bool read_otherwise_ = false;
  bool makes_history_ = false;  // an active part does
  bool draws_where_it_reads_ = false;
  bool describes_in_place_ = false;
  bool moves_parameters_ = false;
  std::vector<trace::WeakTensor> parameters_;  // whose gradients parts use, passive ones too
  // Of the open part, with their memory as it began.
  std::vector<std::pair<trace::WeakTensor, const c10::StorageImpl*>> placed_;
  std::vector<HostPart> parts_;  // active ones
  std::vector<std::function<void()>> passive_;
  trace::StorageSet made_;                        // by operations of parts
  trace::StorageSet passive_made_;                // of passive ones
  std::vector<trace::WeakTensor> passive_given_;  // tensors of that memory
  std::size_t operations_ = 0;
  // Operations of the open part that run: their numbers, their calls, and the tensors that are their arguments.
  struct Running {
    std::uint64_t number;
    std::size_t call;
    std::vector<const c10::TensorImpl*> arguments;
  };
  std::vector<Running> running_;
};

}  // namespace pianola::callable
