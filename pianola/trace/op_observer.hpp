#pragma once
#include <pianola/trace/op_info.hpp>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pianola::trace {

class StepMemory;

/// The node of autograd's backward graph that a thread is running.
struct RunningNode {
  const char* name = "";       ///< "AddmmBackward0".
  std::int64_t sequence = -1;  ///< Sequence number of the forward operation that made it; -1: unknown.

  /// Whether it puts a gradient into its leaf.
  [[nodiscard]] bool accumulates() const {
    return std::string_view(name).find("AccumulateGrad") != std::string_view::npos;
  }
};

/// One operation while it runs. Valid during the callback only.
struct OpSpan {
  std::uint64_t number;  ///< Unique in the process; the same at begin and end.
  const OpInfo* info;
  c10::ArrayRef<c10::IValue> inputs;     ///< At begin only.
  c10::ArrayRef<c10::IValue> outputs;    ///< At end only; empty where the operation threw.
  std::int64_t sequence;                 ///< Autograd's sequence number of a forward operation; -1: none.
  const RunningNode* backward;           ///< nullptr in forward.
  std::span<const std::string> scopes;   ///< Open user scopes, outermost first.
  std::span<const char* const> callers;  ///< Composite operators around it, outermost first: "aten::item".
  const StepMemory* memory;              ///< What the step made before this operation.
  std::uint64_t around;                  ///< Number of the operation whose kernel for autograd calls it; 0: none.
};

/// What an observer looks at. Each costs time for every call, also of operations inside operations.
struct OpInterest {
  bool outputs = true;        ///< OpSpan::outputs, and so OpSpan::memory, which is made from them.
  bool inner = false;         ///< on_inner_end(), and StepMemory::maker_of_lost().
  bool host_numbers = false;  ///< StepMemory::is_host_number().
};

/// Sees the top-level ATen operations of a step, in order; see OpStream. One that the kernel for autograd of another calls
/// begins and ends inside that one; see Note [Calls of a kernel for autograd]. Callbacks run on the thread of the operation,
/// one at a time. One that throws is shown nothing more; OpStream::failure() tells.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  /// Asked once, when a stream begins.
  [[nodiscard]] virtual OpInterest interest() const { return {}; }
  virtual void on_op_begin(const OpSpan& /*op*/) {}
  virtual void on_op_end(const OpSpan& /*op*/) {}
  /// A call of an operator on tensors that are made of tensors begins; the operations that its Python calls come after it.
  virtual void on_taken_apart(const OpSpan& /*call*/) {}
  /// A call inside an operation that is none itself, or a composite around operations, has ended. `around.info` is the
  /// operation or the composite itself; `inner` the name of what ended.
  virtual void on_inner_end(const OpSpan& /*around*/, const char* /*inner*/) {}
};

}  // namespace pianola::trace
