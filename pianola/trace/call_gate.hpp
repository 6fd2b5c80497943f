#pragma once
#include <pianola/trace/op_info.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <functional>

namespace pianola::trace {

/// While it lives, the calls of operators that this thread makes come to it first: before autograd, autocast and the record of
/// operations below it. What an operator calls for itself does not come; what a composite calls does, in place of the composite.
/// What is done about a call, the handler decides.
///
/// The innermost gate of the thread is asked first, and hands a call on to the one around it by run(). Other threads pass, those
/// of autograd as well.
class CallGate {
 public:
  /// Takes the call's arguments from the end of the stack and leaves its results there: by run(), or by itself.
  using Handler = std::function<void(const OpInfo& op, torch::jit::Stack& stack)>;

  /// Whether the handler makes a call of others, which it calls by the dispatcher: streams take it for a composite then.
  using MakesOfOthers = std::function<bool(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs)>;

  explicit CallGate(Handler handler, MakesOfOthers makes_of_others = {});
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;
  ~CallGate();

  /// Makes the call: for a handler. A gate around this one sees it then.
  static void run(const OpInfo& op, torch::jit::Stack& stack);
  /// Whether the handler of one that is open on this thread makes the call of others.
  [[nodiscard]] static bool makes_of_others(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
  /// Whether one is open on this thread.
  [[nodiscard]] static bool is_open() noexcept;
};

}  // namespace pianola::trace
