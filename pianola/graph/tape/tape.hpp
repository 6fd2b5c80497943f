#pragma once
#include <pianola/graph/tape/communication.hpp>
#include <pianola/graph/tape/op_settings.hpp>
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph {

/// One operation of a tape. Its values are aliases of the step's tensors: same memory, own metadata, no history.
struct TapeOp {
  c10::OperatorHandle handle;
  std::vector<c10::IValue> inputs;
  std::vector<c10::IValue> outputs;
  /// Results in memory of their own, which replays must fill: (index of the output, position in its list or -1).
  std::vector<std::pair<std::size_t, std::int64_t>> fresh = {};
  OpSettings settings = {};
  bool writes_results = false;  ///< Bound to a variant that writes its results itself; see bind().
  bool is_copy = false;         ///< Bound to a copy: of the arguments there is only the first, behind the result.
  bool answers = false;         ///< What it tells the host has to be what it told when it was recorded.
  std::size_t number = 0;       ///< As the step called it, from 1.
  const trace::OpInfo* info = nullptr;
  std::shared_ptr<Communication> communication = {};  ///< Of a collective.
};

/// Memory that a tape fills anew in each replay.
struct TapeResult {
  at::Tensor tensor;        ///< One that looks at it.
  std::size_t aliases = 0;  ///< How many tensors of the tape do; it is scratch where nobody else does.

  [[nodiscard]] bool is_scratch() const { return tensor.storage().use_count() == aliases; }
};

/// A tensor of TapeOp::fresh.
inline const at::Tensor& tensor_at(const c10::IValue& value, std::int64_t position) {
  return position < 0 ? value.toTensor() : value.toListRef()[static_cast<std::size_t>(position)].toTensor();
}

/// A recorded sequence of operations, and how to run it again on the same memory.
class Tape {
 public:
  /// Runs all operations, in order, on this thread; results land where the recording put them. What an operation throws
  /// comes out as it is, with failed() for context where it is torch's; those before it have done their work, as in eager
  /// mode, and the next replay begins anew.
  void replay() { replay(0, ops_.size()); }
  /// The same of those that the step called from `first` to `last`, counted from 1.
  void replay_calls(std::size_t first, std::size_t last);
  /// Gives the operation that the step called as this one another number for an argument.
  void set_argument(std::size_t call, std::size_t argument, const c10::IValue& value);
  [[nodiscard]] bool has_argument(std::size_t call, std::size_t argument) const;
  /// Whether replays from now on are of the call that was recorded; see Note [Collectives on the tape]. Before the first replay.
  void repeat_recorded_call(bool repeat);
  /// The operation that threw in the last replay which threw; nullptr: none has.
  [[nodiscard]] const TapeOp* failed() const noexcept { return failed_; }

  void add(TapeOp op) { ops_.push_back(std::move(op)); }
  /// Drops what a replay need not run (views, allocations) and binds the rest to variants that write in place.
  void bind();

  [[nodiscard]] const std::vector<TapeOp>& ops() const noexcept { return ops_; }
  /// After bind(), each once. Another thread may read them during a replay, as it may not read ops(), whose arguments change.
  [[nodiscard]] const std::vector<TapeResult>& results() const noexcept { return results_; }
  [[nodiscard]] std::map<std::string, std::size_t> count_by_operator() const;
  [[nodiscard]] std::size_t result_bytes() const;

 private:
  void put_checks_in_place();
  void find_results();
  void replay(std::size_t begin, std::size_t end);
  void call(const TapeOp& op);
  void forget_recorded_call();
  [[nodiscard]] std::size_t index_of(std::size_t call) const;

  std::vector<TapeOp> ops_;
  std::vector<TapeResult> results_;
  std::vector<std::size_t> index_of_call_;  // after bind()
  torch::jit::Stack stack_;
  const TapeOp* failed_ = nullptr;
  PendingWork pending_;
  bool repeats_recorded_call_ = false;
  bool knows_recorded_call_ = true;
};

/// While it lives, poison_tapes() and is_made_by_a_tape() know the tape, which stays where it is.
class LiveTape {
 public:
  explicit LiveTape(const Tape& tape);
  LiveTape(const LiveTape&) = delete;
  LiveTape& operator=(const LiveTape&) = delete;
  ~LiveTape();

 private:
  const Tape& tape_;
};

/// Whether the replays of a live tape fill the tensor's memory.
bool is_made_by_a_tape(const at::Tensor& tensor);

/// Fills with NaN the floating-point results that live tapes fill anew: those that only tapes hold, and those whose
/// memory one of `results` looks at. See Note [What may be poisoned]. No replay may run at the same time.
void poison_tapes(std::span<const at::Tensor> results);

/// Gives whole pages of memory back that these tapes fill anew and only tapes hold; they read as zeros then. No replay may run at the same
/// time. @return  Bytes. See Note [What may be poisoned].
std::size_t drop_scratch(std::span<const Tape* const> tapes);

/// Bytes that these tapes fill anew and only tapes hold. Replays may run at the same time.
std::size_t scratch_bytes(std::span<const Tape* const> tapes);

/// While it lives, replays of tapes on this thread show it each operation at its end.
class ReplayWatch {
 public:
  using OnEnd = std::function<void(const TapeOp&)>;
  explicit ReplayWatch(OnEnd on_end);
  ReplayWatch(const ReplayWatch&) = delete;
  ReplayWatch& operator=(const ReplayWatch&) = delete;
  ~ReplayWatch();

 private:
  OnEnd on_end_;
  const OnEnd* outer_;
};

/// Writes a Tape from an OpStream.
class TapeRecorder final : public trace::OpObserver {
 public:
  [[nodiscard]] trace::OpInterest interest() const override { return {.host_numbers = true}; }
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;
  [[nodiscard]] Tape take();

 private:
  // An operation that has begun and not ended.
  struct Running {
    std::uint64_t number;
    TapeOp op;
    std::vector<std::pair<c10::VariableVersion, std::uint32_t>> written = {};  // of what it writes, as it began
    std::vector<TapeOp> called = {};                                           // by its kernel for autograd
    std::optional<std::size_t> computed_at = {};  // how many of them ran before the kernel that computes

    [[nodiscard]] bool has_written() const;
  };

  Running* find(std::uint64_t number);
  void add_results(Running& running, const trace::OpSpan& op);
  void note_collective(TapeOp& op);
  void note_arrivals(c10::ArrayRef<c10::IValue> used);
  void put(std::vector<TapeOp> ops, std::uint64_t around);

  Tape tape_;
  std::size_t begun_ = 0;
  std::vector<Running> running_;
  std::vector<std::shared_ptr<Communication>> under_way_;  // that are done when the host's code has waited
};

}  // namespace pianola::graph
