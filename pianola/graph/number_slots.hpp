#pragma once
#include <pianola/graph/graph_numbers.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/operation_log.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

namespace pianola::graph {

// Note [Numbers among the arguments]
// A number among a call's arguments may change from call to call. Who makes the calls follows it: what is calculated of it,
// what the function decides by it, and which operations are given what (trace::NumberSpan). A graph has a slot where an
// operation was given such a number, and is told the new one before it is replayed. That it was this number and no other, the
// calls before the capture have to show: in each of them the operation was given what follows from that call's arguments, and
// that was another number in three of them at least (NumberEvidence).
// An operation that only looks at memory, x[:, i], is no part of a graph. It is made again with the new number, and the
// operations that use its result are given the new one. An operation that cannot be given another number or tensor makes the
// number part of the signature.

/// To the bit, and of the same type.
[[nodiscard]] bool same_number(const c10::IValue& one, const c10::IValue& other);

/// Whether the numbers of the operation give the shape of what it makes.
[[nodiscard]] bool makes_shapes(const trace::OpInfo& op);

/// What a caller follows, and what a run was given.
struct NumberEvidence {
  struct Given {
    std::size_t operation;  ///< Counted from 1.
    std::size_t argument;
    bool can_be_set;
    bool is_collective;                ///< Of one that communicates.
    bool is_place;                     ///< Of an operation that looks at memory: at which part of it.
    bool is_direct;                    ///< The function calls the operation itself, on nothing that requires grad.
    std::vector<int> sources;          ///< Numbers that the operation may have been given, by the caller's count.
    std::vector<c10::IValue> numbers;  ///< In the capture, and in the calls before.
  };
  std::vector<std::vector<c10::IValue>>
      arguments;             ///< Numbers that are followed: of the capture, and of the calls before.
  std::vector<Given> given;  ///< What changes, or has sources.
  std::string change;  ///< In words: the first number that changes without being an optimizer's; empty where none does.
};

/// A number that an operation is given before a replay.
struct NumberSlot {
  std::size_t operation;
  std::size_t argument;
  std::size_t value;  ///< Which of the caller's values.
};

/// The numbers of a call before a capture.
struct NumberSample {
  std::vector<c10::IValue> arguments;
  std::vector<trace::OperationLog::Number> given;
};

/// Sees which operations of a run are given numbers that the caller follows, and what looks at memory by them.
class NumberUses final : public trace::OpObserver {
 public:
  void on_op_begin(const trace::OpSpan& op) override;
  void on_op_end(const trace::OpSpan& op) override;

  /// Whether the operation that began last may be given something else.
  [[nodiscard]] bool is_at_one() const noexcept { return is_at_one_; }
  [[nodiscard]] bool empty() const noexcept { return uses_.empty(); }

 private:
  friend class NumberSlots;
  struct Use {
    std::size_t operation;
    std::vector<int> sources;
    bool is_direct;
    std::vector<c10::IValue> inputs;  // numbers only
  };
  // Where a tensor is given that moves.
  struct Consumer {
    std::size_t operation;
    std::size_t argument;
  };
  // A call that looks at memory.
  struct View {
    std::size_t operation;
    const trace::OpInfo* info;
    torch::jit::Stack inputs;
    std::vector<std::pair<std::size_t, std::size_t>> parents = {};  // argument, view that it is the result of
    at::Tensor result = {};                                         // an alias
    std::optional<trace::WeakTensor> original = {};
    std::vector<Consumer> consumers = {};
    bool is_lost = false;  // somebody may use the result in another way
  };

  [[nodiscard]] std::vector<int> sources_of(const trace::OpSpan& op);
  void note_moving(const trace::OpSpan& op, bool is_source);
  void note_strangers(const at::Tensor& tensor);

  std::size_t operations_ = 0;
  bool is_at_one_ = false;
  std::unordered_map<std::uint64_t, Use> uses_;                   // by OpSpan::number
  std::unordered_map<std::int64_t, std::vector<int>> sequences_;  // of forward operations, for their backward
  std::vector<View> views_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> moving_;  // their results
  std::vector<std::pair<std::uint64_t, std::size_t>> open_views_;
  std::vector<std::pair<std::uint64_t, std::size_t>> open_consumers_;  // OpSpan::number, and the view
};

/// The slots of one graph.
class NumberSlots {
 public:
  /// What a capture was given.
  /// @param results  Of the run.
  [[nodiscard]] static NumberEvidence evidence(const NumberUses& uses, const trace::OperationLog& log,
                                               std::span<const NumberSample> samples, const GraphNumbers& graph,
                                               std::span<const at::Tensor> results);

  NumberSlots() = default;
  NumberSlots(const NumberUses& uses, std::span<const NumberSlot> slots);

  [[nodiscard]] bool empty() const noexcept { return numbers_.empty() && views_.empty(); }
  /// @return  False: an operation cannot have these, or its result would have another shape; nothing was set.
  [[nodiscard]] bool set(std::span<const c10::IValue> values, const GraphNumbers& graph);

 private:
  struct Number {
    NumberSlot slot;
    c10::IValue like;  // what the operation had in the capture
    std::optional<c10::IValue> last = {};
  };
  struct View {
    NumberUses::View call;
    std::vector<NumberSlot> numbers;
    std::vector<std::pair<std::size_t, std::size_t>> parents;  // argument, index among these
    bool has_moved = false;
    at::Tensor next = {};
  };
  [[nodiscard]] bool look_again(View& view, std::span<const c10::IValue> values);

  std::vector<Number> numbers_;
  std::vector<View> views_;
  std::size_t values_ = 0;    // that set() needs
  bool is_half_set_ = false;  // views have other numbers than the graph
};

}  // namespace pianola::graph
