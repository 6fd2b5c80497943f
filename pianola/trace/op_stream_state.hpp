#pragma once
#include <pianola/torch_abi/thread_slot.hpp>
#include <pianola/trace/allocation_log.hpp>
#include <pianola/trace/collective_work.hpp>
#include <pianola/trace/observer_failure.hpp>
#include <pianola/trace/odd_work.hpp>
#include <pianola/trace/op_observer.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/thread_position.hpp>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::trace {

/// While observers look at an operation. Asking a tensor subclass for its sizes may call operators: they are the observer's doing,
/// not the step's, and would wait for the lock that this thread holds.
class ObserversRun {
 public:
  ObserversRun() { running_ = true; }
  ObserversRun(const ObserversRun&) = delete;
  ObserversRun& operator=(const ObserversRun&) = delete;
  ~ObserversRun() { running_ = before_; }

  [[nodiscard]] static bool on_this_thread() noexcept { return running_; }

 private:
  static inline constinit thread_local bool running_ = false;
  bool before_ = running_;  // an inner stream's observers, then the outer one's
};

// Note [How a recording finds its threads]
// The callbacks are thread local, and so is the pointer to the state, kept as ThreadLocalDebugInfo: autograd copies both
// to the thread that runs a backward (at::ThreadLocalState), and nothing copies them to intra-op workers or to threads
// of the user's own.

/// What the threads of a step share while an OpStream sees their operations: the observers, and what is found out for them. What it
/// is told, the streams around it are told as well. Threads: any, where nothing else is said.
class OpStreamState final : public c10::DebugInfoBase, public std::enable_shared_from_this<OpStreamState> {
 public:
  /// @param outer  Of the stream that sees this thread already; nullptr: none does.
  OpStreamState(std::vector<OpObserver*> observers, ForRanks patience, OpStreamState* outer);

  /// Of the innermost stream that sees the operations of this thread; nullptr: none does.
  [[nodiscard]] static OpStreamState* current() {
    return static_cast<OpStreamState*>(c10::ThreadLocalDebugInfo::get(torch_abi::kSlotOfOperations));
  }

  /// Operations of this thread are seen from now on, until close(), which is to be called on the same thread.
  void open();
  void close();
  /// See OpStream::disarm().
  void disarm() noexcept;

  [[nodiscard]] std::uint64_t recording() const noexcept { return recording_; }
  [[nodiscard]] ForRanks patience() const noexcept { return patience_; }
  [[nodiscard]] std::thread::id step_thread() const noexcept { return step_thread_; }
  [[nodiscard]] bool on_step_thread() const { return std::this_thread::get_id() == step_thread_; }
  [[nodiscard]] bool wants_inner() const noexcept { return interest_.inner; }
  [[nodiscard]] ThreadPosition& position() const { return ThreadPosition::in(recording_); }

  // For the observers:
  void begin_op(OpSpan op);
  void end_op(OpSpan op);
  void end_inner(const OpSpan& around, const char* inner);
  void show_taken_apart(OpSpan call);
  /// A call hidden inside an operation has ended.
  void note_hidden(const OpSpan& around, const OpInfo& hidden, c10::ArrayRef<c10::IValue> results);
  /// What is allocated inside an operation is the operation's, not the host's.
  void let_host_allocate(bool lets) {
    for (OpStreamState* state = this; state != nullptr; state = state->outer_.get()) {
      if (state->allocations_ != nullptr && state->on_step_thread()) state->allocations_->pause(!lets);
    }
  }

  // Of the step:
  /// For each stream of which it is the first, or says more than that. @param op  "" where it is no operator.
  void note_odd(Oddity oddity, std::string what, const char* op, const ThreadPosition& here);
  void note_buffers(c10::ArrayRef<c10::IValue> allocated);
  [[nodiscard]] bool reads_buffers(c10::ArrayRef<c10::IValue> inputs);
  void note_released(const ReleasedNode& node);
  /// The open user scopes of the thread that made the stream, for autograd's threads.
  void share_scopes(const std::vector<std::string>& scopes);
  [[nodiscard]] std::vector<std::string> shared_scopes();

  [[nodiscard]] ObserverFailure& failure() noexcept { return failure_; }
  [[nodiscard]] std::optional<OddWork> odd_work();
  [[nodiscard]] std::optional<OddWork> communication();
  [[nodiscard]] std::vector<ReleasedNode> released_nodes();

 private:
  template <typename Show>
  void tell(const OpSpan& op, const Show& show);
  void listen_to_operations();
  void listen_to_allocations();
  [[nodiscard]] bool knows(Oddity oddity);
  [[nodiscard]] OpStreamState& outermost() { return outer_ == nullptr ? *this : outer_->outermost(); }

  const std::shared_ptr<OpStreamState> outer_;  // nullptr: none
  const std::uint64_t recording_;               // the same for nested streams
  ForRanks patience_;
  const std::thread::id step_thread_ = std::this_thread::get_id();
  OpInterest interest_ = {.outputs = false};                   // of all observers, those of outer streams included
  std::unique_ptr<AllocationLog> allocations_;                 // of the thread that made the stream; used there only
  std::optional<c10::DebugInfoGuard> guard_;                   // of that thread, too
  at::CallbackHandle callback_ = at::INVALID_CALLBACK_HANDLE;  // of the outermost stream

  ObserverFailure failure_;
  std::mutex mutex_;  // autograd's threads of several devices run at once; what follows is by it
  std::vector<OpObserver*> observers_;
  bool disarmed_ = false;
  StepMemory memory_;
  CollectiveBuffers buffers_;
  FirstOddWork first_odd_;
  std::vector<ReleasedNode> released_;
  std::vector<std::string> step_scopes_;  // kept by the outermost stream
};

}  // namespace pianola::trace
