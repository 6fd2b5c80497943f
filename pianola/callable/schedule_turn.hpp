#pragma once
#include <pianola/schedule/buffer_plan.hpp>
#include <pianola/schedule/schedule.hpp>

#include <cstddef>
#include <string>

namespace pianola::callable {

/// Whose turn it is among the callables of a pipeline stage: each step of the schedule is all layers of a chunk, forward
/// in order, backward and delayed gradients of weights in reverse. After the last step the first one follows.
class ScheduleTurn {
 public:
  explicit ScheduleTurn(Schedule schedule);

  /// The microbatch (from 1) and slot (from 0) of the next forward of this layer; layers are counted over all chunks.
  struct Place {
    int microbatch;
    int slot;
  };
  /// @throws ScheduleError  It is another call's turn.
  [[nodiscard]] Place forward(int layer) const;
  void check_backward(int layer, int microbatch) const;
  /// @param microbatch  0: whichever is next.
  void check_weights(int layer, int microbatch) const;
  [[nodiscard]] bool expects_weights(int layer) const {
    return step().direction == Direction::weight_gradients && layer == expected_layer();
  }
  /// The call that was checked last has been launched.
  void advance();
  void restart() noexcept;
  [[nodiscard]] int restarts() const noexcept { return restarts_; }

  [[nodiscard]] const Schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] const BufferPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] int chunk_of(int layer) const;

 private:
  [[nodiscard]] const ScheduleStep& step() const { return schedule_.steps()[position_]; }
  [[nodiscard]] int expected_layer() const;
  [[noreturn]] void refuse(Direction direction, int layer, int microbatch) const;
  [[nodiscard]] std::string in_words(const ScheduleStep& step, int layer) const;

  Schedule schedule_;
  BufferPlan plan_;
  std::size_t position_ = 0;  // in the steps
  int layers_done_ = 0;       // of the current step
  int restarts_ = 0;
};

}  // namespace pianola::callable
