#pragma once
#include <pianola/trace/op_observer.hpp>

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola::trace {

/// An operation that has begun and not ended.
struct OpenOperation {
  const OpInfo* info;  ///< nullptr: one that is not plain, or the host's own.
  const char* name;    ///< As its span has it.
  std::uint64_t number;
  std::size_t callers;         ///< Open composites when it began.
  bool differentiates;         ///< It has a kernel for autograd, whose calls are operations too.
  bool waits = false;          ///< For its end; see Note [Collectives that are observed].
  bool is_own = false;         ///< The host's.
  bool fills_buffers = false;  ///< See CollectiveBuffers.
};

/// Where one thread stands among the open spans.
struct ThreadPosition {
  std::uint64_t recording = 0;            ///< That the rest belongs to.
  std::vector<OpenOperation> operations;  ///< Outermost first.
  int hidden = 0;                         ///< Open spans inside the kernel of the innermost operation.
  std::vector<const char*> callers;       ///< Open composites.
  std::vector<std::size_t> taken_apart;   ///< Which of them are calls that Python takes apart, by their places.
  std::vector<std::string> scopes;        ///< Open user scopes.
  std::vector<RunningNode> backward;      ///< Open backward nodes; more than one where a backward runs a backward.

  /// Of the calling thread. A scope that was left open when an earlier recording ended does not show up in this one.
  [[nodiscard]] static ThreadPosition& in(std::uint64_t recording) {
    thread_local ThreadPosition here;
    if (here.recording != recording) {
      here = {};
      here.recording = recording;
    }
    return here;
  }

  /// Whether what is called now is hidden in the kernel of an operation. See Note [Calls of a kernel for autograd].
  [[nodiscard]] bool in_kernel() const {
    if (hidden > 0) return true;
    return !operations.empty() && (!operations.back().differentiates ||
                                   c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality));
  }

  [[nodiscard]] bool ends_operation(const char* name) const {
    return !operations.empty() && operations.back().name == name && operations.back().callers == callers.size();
  }
  [[nodiscard]] bool ends_composite(const char* name) const { return !callers.empty() && callers.back() == name; }

  /// The innermost operation that is open, as observers see it, without inputs and outputs. Valid until something opens or closes.
  /// @param sequence  Of the span that asks.
  [[nodiscard]] OpSpan innermost(std::int64_t sequence) const {
    const std::size_t depth = operations.size();
    return {.number = depth > 0 ? operations[depth - 1].number : 0,
            .info = depth > 0 ? operations[depth - 1].info : nullptr,
            .inputs = {},
            .outputs = {},
            .sequence = sequence,
            .backward = backward.empty() ? nullptr : &backward.back(),
            .scopes = scopes,
            .callers = callers,
            .memory = nullptr,
            .around = depth > 1 ? operations[depth - 2].number : 0};
  }
};

}  // namespace pianola::trace
