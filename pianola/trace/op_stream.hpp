#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace pianola::trace {

class AllocationLog;
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

/// A node of autograd that a backward pass ran, and whose saved tensors it let go of (no retain_graph).
struct ReleasedNode {
  std::uint64_t thread;   ///< That made it; see torch::autograd::Node::thread_id().
  std::int64_t sequence;  ///< Unique among those of its thread.
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

/// How long a collective of the CPU that is observed is waited for; see Note [Collectives that are observed].
enum class ForRanks : std::uint8_t { a_while, as_long_as_it_takes };

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

/// While it lives, shows every operation that this thread runs, and that autograd's threads run for it, to `observers`,
/// in their order. Operations of other threads are not seen: intra-op workers repeat parts of an operation, and threads
/// of the user's own are not part of the step.
///
/// Operations that are not plain (Note [What is plain]) it keeps from the observers, and remembers the first. It also keeps those
/// that are the host's own (Note [Calls of the host]).
///
/// Must be destroyed on the thread that made it. Streams nest: the inner one's operations reach both.
class OpStream {
 public:
  explicit OpStream(std::vector<OpObserver*> observers, ForRanks patience = ForRanks::a_while);
  OpStream(const OpStream&) = delete;
  OpStream& operator=(const OpStream&) = delete;
  ~OpStream();

  /// Why the records of its observers are not whole: what one of them threw, and while which operation; nothing where all
  /// went well. Ask it at the end, before anybody trusts them.
  [[nodiscard]] std::optional<Diagnosis> failure() const;
  /// @throws CaptureError  There is a failure(); OutOfMemoryError, where that is why.
  void check() const;

  /// From any thread: the observers are shown nothing more, and may end before the stream does.
  void disarm() noexcept;

  /// The first work that was not plain; nothing while there is none.
  [[nodiscard]] std::optional<OddWork> odd_work() const;
  /// The first work with other ranks that the graph of a whole step may hold, that of DistributedDataParallel before others, which
  /// asks for more warm-up; nothing while there is none.
  [[nodiscard]] std::optional<OddWork> communication() const;

  /// In the order in which they began.
  [[nodiscard]] std::vector<ReleasedNode> released_nodes() const;

  /// Whether a stream sees the operations of this thread.
  [[nodiscard]] static bool watches_this_thread() noexcept;
  /// The thread whose step this thread works for: the one that made the stream which sees its operations; without one, itself.
  [[nodiscard]] static std::thread::id thread_of_step() noexcept;
  /// Of this thread; see note_compiled_code().
  static void note_compiled(std::string what, bool is_new);
  /// Of this thread; see the function of that name.
  [[nodiscard]] static bool runs_python_of_a_tensor() noexcept;

 private:
  void listen_to_allocations();

  struct State;
  std::unique_ptr<AllocationLog> allocations_;  // of the thread
  std::shared_ptr<State> state_;
};

/// Throws what OpStream::failure() tells.
[[noreturn]] void throw_failure(Diagnosis failure);

}  // namespace pianola::trace
