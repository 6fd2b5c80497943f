#pragma once
#include <pianola/callable/gradient_parts.hpp>
#include <pianola/callable/leaf_set.hpp>
#include <pianola/callable/made_memory.hpp>
#include <pianola/graph/placement.hpp>
#include <pianola/trace/memory_ranges.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

// Note [Gradients of a step]
// A captured step finds each `p.grad` in some state and leaves it in another; a replay is right where it finds the
// same:
//
//   before     after        a replay needs                    and leaves
//   a tensor   that tensor  that tensor: the step adds to it  it
//   undefined  a tensor     undefined: the step would add     the tensor of the capture
//   a tensor   another      a tensor: the step drops it       the tensor of the capture
//   a tensor   undefined    a tensor: the step drops it       undefined
//   undefined  undefined    undefined                         undefined
//
// Where an operation uses the tensor before the step throws it away (it adds to it, and steps the optimizer), a replay needs
// that tensor. A capture puts back what it found, so that what the run left has to be noted at its end. One that the step throws
// away unused goes at once, as eagerly: else the old and the new gradients of a model would need memory side by side. After a
// capture that failed it is undefined, which is how the step left it.
//
// A gradient that is there, and that no operation uses, is left alone, whichever it is: that of a parameter which another function trains.
// Whether there is one the host may ask, with no operation: a graph is for the calls that find one.
// Where a step that trains launches kernels that are no operator's, these may use it, and nobody knows. A step that returns a gradient
// that it found, or makes it another one's, uses it as well: a replay would hand out the one of the capture.
//
// A tensor that the capture made is written by each replay, where eager would make a new one. So it must not be written
// while somebody holds it, or a view of it, for its value of before: the step has to be captured again, or to run eagerly.
//
// Where others put other tensors into `p.grad` at each call (the step is the optimizer's alone, or a second one makes gradients of
// the same parameters), no graph fits the next call. Then the step is captured with own gradients in their place: a replay copies
// there what the caller's tensors hold, and back what was written, by the graph or by a part that stays eager. That is what eager
// does, provided that the step keeps or drops them, that replays run no optimizer of the user's on them, and that the caller's
// tensors share no memory with each other or with anything else that the graph touches. Where that is not so, there are none.
//
// A sparse gradient grows where a step adds to it, and is two tensors: a step that makes or uses one is refused.

/// The gradients of the leaves that a step uses: what it found when it was captured, and what it left. As an observer of
/// the recorded run it also knows between which operations they changed.
class StepGradients final : public trace::OpObserver {
 public:
  /// Before the capture. @param own  Leaves whose gradients are to be the step's own.
  /// @param may_be_taken_back  Replays may be: what the first one finds is kept until then.
  StepGradients(const std::vector<at::Tensor>& leaves, const LeafSet& own, bool may_be_taken_back);

  /// Makes gradients what they were before the capture, which failed.
  void put_back() const;
  /// After the capture's run. Whether it used a sparse gradient that it found, or made one.
  [[nodiscard]] bool any_is_sparse() const;
  /// After the capture's run. What it found and returned, or left as a gradient again (`p.grad = q.grad`), it has used, with or without
  /// an operation.
  void note_handed_out(const std::vector<at::Tensor>& results);
  /// After the capture's run: what else the graph reads, writes or returns.
  void note_memory_beside(const std::vector<at::Tensor>& tensors);
  /// Then: whether own gradients, if there are any, can stand for the caller's. @param seen  Parameters that code of the user's
  /// works on at each replay.
  [[nodiscard]] bool may_be_own(const std::vector<at::Tensor>& seen) const;
  /// After the capture. What they were before is forgotten. @param all_seen  Nothing but operations uses gradients.
  void finish(bool all_seen);
  /// Once what the capture's run has held is gone.
  void count_references();

  /// Before a replay: whether it is right to replay. In one tight loop.
  [[nodiscard]] bool are_as_captured() const;
  /// Whether one of the inputs lies in the memory of a gradient that the step uses: a replay reads a copy from before the call.
  [[nodiscard]] bool are_among(std::span<const at::Tensor> inputs) const;
  /// Leaves whose gradients the step uses, and whose place others have taken.
  [[nodiscard]] LeafSet replaced() const;
  /// Around a replay: `p.grad` is the step's own in place of the caller's, where there are own ones.
  void copy_in();
  void copy_out();
  /// Before a replay that may be taken back: remembers what the call found; the first one's is known from the capture.
  void note_found();
  /// After it; or, in place of copy_out(), after one that was taken back: gradients are what the call found.
  void forget_found();
  void give_back_found();
  /// After a replay.
  void leave_as_captured() const;
  /// After a replay in which this operation threw, counted from 1 (0: none was launched): gradients are what the step has
  /// made of them by then. One that it made in several goes is undefined until the last.
  void leave_as_at(std::size_t operation) const;

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  /// The step is about to run, once more maybe.
  void begin_run();
  void end_run();

  [[nodiscard]] bool covers(const at::Tensor& leaf) const;
  /// Whether it is one of the gradients that leaves had before.
  [[nodiscard]] bool had(const at::Tensor& gradient) const;

 private:
  enum class After { kept, unused, made, dropped };
  struct Leaf {
    explicit Leaf(const at::Tensor& leaf);
    void make_own();
    [[nodiscard]] std::size_t holders_of_own() const;
    [[nodiscard]] bool is_as_captured() const;
    [[nodiscard]] bool is_left() const { return after == After::kept || after == After::unused; }
    [[nodiscard]] bool finds_what_it_uses() const;
    [[nodiscard]] bool has_the_same_hooks() const;

    trace::WeakTensor tensor;  // a leaf that is gone needs no gradient; OutsideGuard has noticed
    torch::autograd::AutogradMeta* meta;
    at::Tensor before;        // until finish(), or until the step has thrown it away unused
    at::Tensor copy;          // of it, where it is sparse
    at::Tensor call_found;    // until the replay can no longer be taken back
    at::Tensor own;           // what the step works on; undefined: the caller's
    at::Tensor callers;       // where there is an own one, during a replay
    std::int64_t writes = 0;  // that PyTorch has counted of the own one, as the replay begins
    trace::WeakTensor found;  // what the step works on, not kept alive
    After after = After::kept;
    bool was_defined = false;
    std::uint64_t hooks;      // mark_of_hooks() while it was captured
    bool uses_found = false;  // an operation of the run does
    bool writes_found = false;
    std::optional<std::size_t> holders = {};  // of the own one; none before the first replay
    bool was_dropped = false;                 // at the end of the run
    at::Tensor made = {};                     // by the capture
    graph::Placement placement;               // of what was found
    graph::Placement made_placement;
    GradientParts found_parts;
    GradientParts made_parts;

    // The first operations that began when it was another one than before, and when it was what the run left.
    static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
    const c10::TensorImpl* seen = nullptr;
    std::size_t changed_at = kNever;
    std::size_t made_from = kNever;
  };
  void note_use(const at::Tensor& tensor);
  [[nodiscard]] bool callers_are_apart(const trace::MemoryRanges& beside) const;
  void let_go_of_found(Leaf& leaf);

  std::vector<Leaf> leaves_;
  bool any_own_ = false;
  bool may_be_taken_back_;
  bool knows_found_ = false;  // Leaf::call_found
  trace::MemoryRanges beside_;
  std::vector<const c10::StorageImpl*> used_;  // of gradients that the step uses, but for own ones; in order
  std::shared_ptr<MadeMemory> memory_;         // of what the capture made
  // That were found, by their memory, and the tensor itself where it has none of its own; until finish().
  std::unordered_multimap<const void*, std::size_t> leaves_of_gradients_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> let_go_;  // so that no other gets the address of one of them
  std::size_t operations_ = 0;
};

}  // namespace pianola::callable
