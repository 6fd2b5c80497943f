#pragma once
#include <pianola/core/export.hpp>
#include <pianola/schedule/schedule.hpp>

#include <span>
#include <vector>

namespace pianola {

/// The static buffers of a chunk, seen from outside.
enum class BufferKind { input, output, output_gradient, input_gradient };

inline constexpr BufferKind kBufferKinds[] = {BufferKind::input, BufferKind::output, BufferKind::output_gradient,
                                              BufferKind::input_gradient};

/// When a buffer holds what belongs to one microbatch.
struct BufferLifetime {
  BufferKind kind = BufferKind::input;
  int chunk = 1;
  int microbatch = 1;
  int buffer = 0;      ///< Which of the chunk's buffers of this kind, counted from 0.
  int first_step = 1;  ///< Steps of the schedule, counted from 1; both belong to the lifetime.
  int last_step = 1;

  friend bool operator==(const BufferLifetime&, const BufferLifetime&) = default;
};

/// Which buffers the chunks of a schedule need when microbatches that are never in flight together share them.
///
/// A slot is the set of buffers of one microbatch in flight. A forward takes the first slot that is free, its backward
/// frees it (or the gradients of weights, where they are delayed), so that a chunk needs as many slots as its depth,
/// whatever the number of microbatches.
/// - Input and output: one per slot, in use from the forward until the slot is free.
/// - Output gradient: one per chunk, in use during the backward.
/// - Input gradient: one per slot, written by the backward, kept until the slot is taken again or the schedule ends.
///
/// A chunk counts as one callable. Where each layer of a chunk is a callable of its own, each needs as many buffers.
///
///     BufferPlan plan(Schedule::parse("1,1,-1,1,-1,-1"));
///     plan.slots(1);    // 2, for 3 microbatches
///     plan.slot(1, 3);  // 0, as microbatch 1
///
/// Threads:  A value: const calls are safe from several threads at once.
/// Source:   What `_reuse_graph_input_output_buffers` of Transformer Engine's make_graphed_callables reuses.
class PIANOLA_API BufferPlan {
 public:
  explicit BufferPlan(const Schedule& schedule);

  [[nodiscard]] int chunks() const noexcept { return static_cast<int>(slots_.size()); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }

  /// @throws UsageError  There is no such chunk.
  [[nodiscard]] int slots(int chunk) const;
  /// The slot, counted from 0, that holds the microbatch from its forward until it is free.
  /// @throws UsageError  There is no such chunk or microbatch.
  [[nodiscard]] int slot(int chunk, int microbatch) const;

  /// One per chunk, microbatch and kind, in this order. Valid while the plan lives and is not assigned to.
  [[nodiscard]] std::span<const BufferLifetime> lifetimes() const& noexcept { return lifetimes_; }
  std::span<const BufferLifetime> lifetimes() const&& = delete;

  /// The buffers that the chunks need together.
  [[nodiscard]] int unique_buffers(BufferKind kind) const noexcept;
  [[nodiscard]] int unique_buffers() const noexcept;
  /// The same if each microbatch had buffers of its own.
  [[nodiscard]] int buffers_without_reuse(BufferKind kind) const noexcept;
  [[nodiscard]] int buffers_without_reuse() const noexcept;

 private:
  int microbatches_ = 0;
  std::vector<int> slots_;  // of each chunk
  std::vector<BufferLifetime> lifetimes_;
};

}  // namespace pianola
