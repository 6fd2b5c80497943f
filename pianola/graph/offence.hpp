#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/call_site.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace pianola::graph {

/// The first operation of a step that cannot be captured, as the message will name it.
struct OffendingOp {
  std::string name;      ///< As the user called it: the outermost composite around it, else the operator.
  std::string detail;    ///< The operators inside it that led there, "" where there are none: "aten::nonzero".
  std::size_t number;    ///< Counted from 1 in the order of the step.
  std::string scope;     ///< Open user scopes, joined by '/'.
  std::string backward;  ///< Autograd node, in backward.
  std::int64_t forward_sequence = -1;
  const trace::OpInfo* info = nullptr;
  trace::CallSite site;

  /// Takes the stack of this thread too, unless the operation is being left by an exception: call it inside the operation. `inner`: the operator inside `op` that is to blame.
  static OffendingOp note(const trace::OpSpan& op, std::size_t number, const std::string& inner = "");

  /// "operation 41 (aten::nonzero), in scope 'encoder/3', train_step at loss.cpp:88". `trace` finds the forward line of
  /// a backward operation; it may be nullptr.
  [[nodiscard]] std::string where(const OpTrace* trace) const;
};

/// The step set a generator itself: in a graph, random numbers go on where the last replay stopped.
/// @param drawing  The first operation that drew afterwards, if one did.
[[nodiscard]] Diagnosis explain_moved_generator(const std::optional<OffendingOp>& drawing, const OpTrace* trace);

/// An operation draws from a generator that is not among those of the capture.
[[nodiscard]] Diagnosis explain_unknown_generator(const std::string& operation, std::string where);

/// The hazard rule that an operation which reads on the host is a case of: by what it needs, how the user called it, and
/// whether it runs in backward.
[[nodiscard]] std::string host_read_rule(const OffendingOp& offender);

/// "... reads a value, which is not allowed during capture", with its place, the rule and the remedy.
[[nodiscard]] Diagnosis explain_host_read(const OffendingOp& offender, const OpTrace* trace);

/// "... copies between host and device and waits for it, which is not allowed during capture", with its place and the remedy.
[[nodiscard]] Diagnosis explain_host_copy(const OffendingOp& offender, const OpTrace* trace);

}  // namespace pianola::graph
