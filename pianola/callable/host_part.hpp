#pragma once
#include <pianola/callable/host_shortcut.hpp>
#include <pianola/trace/host_calls.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/storage_set.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <memory>
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

// Note [Parts whose parameters are made of tensors]
// The calls that a DTensor's Python makes come by no gate, so that a part with such parameters cannot be recognised call by call. It
// runs as eager code where it has to: the graph's operations before it, the part, and the graph's operations behind it. What it calls
// is seen from below, so that a shortcut learns; where that knows the numbers, the whole graph is launched as ever.

// Note [Parts that read]
// A scaler's step() reads whether gradients have overflowed, and steps its optimizer if not. A replay stops there: the graph's
// operations before the read are run, the part reads for real, and goes on. Where it does nothing more, the operations that it
// did when it was captured are left out. A capture cannot read: it takes every value of a scaler for 0, which says that all is
// well; so a call in which one was not is no example for a capture. Others, as an average that keeps its count on the device, are
// given what they read in the run before. The first launch of what was captured has no part run again, for they have run: it
// compares what they would have read. Where that is something else, their work on the host is taken back and done anew: so only
// parts may read that do nothing there but what is put back, and only such parts may come behind one (may_run_twice).

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
  std::size_t operation;  ///< Of the graph: the last one before it that wrote the tensor; the first where none did.
  at::Tensor tensor;      ///< An alias.
  c10::IValue value;      ///< What a capture took it for.
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

  // @return  Whether the shortcut stood in for a rerun.
  bool take_shortcut(const HostPartListener& listener);
  void run_live(const HostPartListener& listener);

  // A parameter of the part, with an alias of the gradient that it had; undefined where it had none.
  struct Gradient {
    trace::WeakTensor parameter;
    at::Tensor value;
  };
  class Gradients;

  Run run_;
  std::shared_ptr<const trace::HostCalls> own_;
  std::shared_ptr<HostShortcut> shortcut_;  // nullptr: there is none
  std::vector<Gradient> gradients_;
  std::vector<HostPartCall> calls_;
  std::vector<HostPartRead> reads_;
  std::function<void()> undo_;                   // in a capture: of what it did to its objects
  trace::HostCalls::Values values_before_ = {};  // in a capture
  bool has_host_numbers_ = false;
  bool runs_live_ = false;                // see Note [Parts whose parameters are made of tensors]
  bool ran_half_ = false;                 // in the capture
  trace::StorageSet made_;                // by its operations
  std::vector<trace::WeakTensor> given_;  // tensors of that memory that it was given since the last hand_out()
  std::size_t first_ = 1;
  std::size_t last_ = 0;
};

/// Whether a call of it is none that a graph holds, and is made anew wherever it is met: it only describes memory. What an
/// allocation returns, a replay has to return, too.
[[nodiscard]] bool only_describes(const trace::OpInfo& op);
/// A tensor that is a number, copied by nobody's step.
[[nodiscard]] at::Tensor copy_of_number(const at::Tensor& number);

}  // namespace pianola::callable
