#pragma once
#include <pianola/cuda/followed_call.hpp>
#include <pianola/cuda/node_change.hpp>
#include <pianola/cuda/node_reader.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/op_trace.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <cuda.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::graph {

// Note [Numbers in CUDA graphs]
// An operation that is given another number is captured once more by itself, on a stream where nothing runs, and its nodes take
// over what the new ones have (Note [Kernels with other numbers]). So no form of a number has to be known: whatever the
// operation makes of it is in the new nodes. Where it launches other kernels now, its nodes cannot follow: then a replay runs
// the graph before it, the operation itself, and the graph behind it. A tensor in another place is given in the same way.
// Once it is known which words follow a number or a tensor, they are set without a capture (Note [Words that follow numbers],
// Note [Arguments that move]).

/// The calls of a captured step that may be given other numbers, and its islands, which a replay always runs itself.
class NumberedCalls final : public trace::OpObserver {
 public:
  /// @param wanted      Asked at each operation of the capture: whether it is one of these.
  /// @param is_in_pool  Whether an address is of the graph's pool. What another graph left there is read where the capture read
  ///                    it: the pool's ledger knows of no other place.
  NumberedCalls(c10::Device device, std::function<bool(std::size_t operation)> wanted,
                std::function<bool(std::uintptr_t address)> is_in_pool)
      : device_(device), wanted_(std::move(wanted)), is_in_pool_(std::move(is_in_pool)) {}

  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;
  /// The capture has ended. @throws CaptureError  The graph cannot be launched up to an island.
  void finish(const OpTrace& trace);
  [[nodiscard]] bool empty() const noexcept { return calls_.empty(); }

  [[nodiscard]] bool has(std::size_t operation, std::size_t argument) const;
  /// Of one that it has: whether it is a tensor on the device.
  [[nodiscard]] bool is_on_device(std::size_t operation, std::size_t argument) const;
  void set(std::size_t operation, std::size_t argument, const c10::IValue& value);

  /// Whether an executable of that time lacks nothing.
  [[nodiscard]] bool are_given(std::uint64_t time) const noexcept { return unsettled_.empty() && time == time_; }
  /// Captures what was given other numbers since the last time.
  void settle();
  /// An operation that a replay has to run itself.
  struct ByHand {
    std::size_t operation;
    std::size_t place;  ///< In the order of operations.
    bool is_moved;      ///< It comes behind the operation of that place, and not in place of it: a check of a read.
    auto operator<=>(const ByHand& other) const {
      return std::tie(place, is_moved, operation) <=> std::tie(other.place, other.is_moved, other.operation);
    }
    bool operator==(const ByHand& other) const = default;
  };
  /// In the order in which a replay runs them.
  [[nodiscard]] const std::vector<ByHand>& by_hand() const noexcept { return by_hand_; }
  /// The place of the last of them up to this operation; 0 if there is none.
  [[nodiscard]] std::size_t last_by_hand(std::size_t operation) const noexcept;
  [[nodiscard]] const trace::OpInfo& info(std::size_t operation) const { return *calls_.at(operation).op; }
  /// Runs one of them on the current stream.
  void run(std::size_t operation) const;

  /// An executable of the step, or of a part of its operations.
  struct Target {
    CUgraphExec executable;
    /// What a node of the capture is in the graph that it was made from.
    std::function<CUgraphNode(CUgraphNode)> node;
    std::size_t first, last;  ///< Operations that it has.
    std::uint64_t& given_at;  ///< 0: it is as it was captured.
  };
  /// Gives it all that has changed since. What CUDA refuses to change is to be run by hand.
  void give(const Target& target);

 private:
  struct Call {
    const trace::OpInfo* op;
    torch::jit::Stack inputs;
    std::vector<std::size_t> fixed = {};  // arguments that are where they were
    torch::jit::Stack outputs = {};
    std::vector<CUgraphNode> handles = {};
    std::vector<GraphNode> nodes = {};        // read when they are first needed
    std::vector<FollowedCall> followed = {};  // for each way in which its tensors were aligned
    std::size_t current = 0;                  // the one whose changes are to be given
    std::uint64_t changed_at = 0;             // 0: it is as it was captured
    CallArguments arguments = {};             // read when they are first needed
    bool has_other_numbers = false;           // than `arguments`
    bool is_out_of_reach = false;             // what it does now only a capture tells
    bool is_unsettled = false;
  };
  using Numbered = std::pair<const std::size_t, Call>;
  // An operation's nodes in a capture that is never run.
  struct CapturedAnew {
    std::vector<CUgraphNode> nodes;
    MemoryAnew memory;
  };
  class Rehearsal;

  void settle(std::vector<Numbered*> calls);
  [[nodiscard]] bool follows(Call& call) const;
  [[nodiscard]] static FollowedCall* followed_of(Call& call);
  void learn_numbers(Call& call);
  struct Rehearsed {
    CapturedAnew anew;
    std::optional<CapturedAnew> again;  // where captures show which words follow a tensor
  };
  [[nodiscard]] static std::optional<Rehearsed> rehearse(Rehearsal& rehearsal, Call& call);
  void take_over(Numbered& numbered, const Rehearsed& rehearsed);
  [[nodiscard]] std::optional<std::vector<NodeChange>> changes_of(Call& call, const CapturedAnew& anew);
  void leave_to_hand(std::size_t operation);
  void leave_islands_to_hand(const OpTrace& trace);

  c10::Device device_;
  std::function<bool(std::size_t)> wanted_;
  std::function<bool(std::uintptr_t)> is_in_pool_;
  std::size_t operations_ = 0;
  std::vector<std::pair<std::uint64_t, std::size_t>> running_;  // number of the span, operation
  std::map<std::size_t, Call> calls_;
  std::vector<Numbered*> unsettled_;
  std::vector<Numbered*> settling_;  // kept for its memory
  std::vector<ByHand> by_hand_;
  std::uint64_t time_ = 0;
  NodeReader reader_{Driver::get()};
};

}  // namespace pianola::graph
