#include <pianola/callable/schedule_turn.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {

ScheduleTurn::ScheduleTurn(Schedule schedule) : schedule_(std::move(schedule)), plan_(schedule_) {}

int ScheduleTurn::chunk_of(int layer) const {
  int chunk = 1;
  while (chunk < schedule_.chunks() && layer >= schedule_.first_layer(chunk + 1)) ++chunk;
  return chunk;
}

int ScheduleTurn::expected_layer() const {
  const int first = schedule_.first_layer(step().chunk);
  if (step().direction == Direction::forward) return first + layers_done_;
  return first + schedule_.layers(step().chunk) - 1 - layers_done_;
}

ScheduleTurn::Place ScheduleTurn::forward(int layer) const {
  if (step().direction != Direction::forward || layer != expected_layer()) refuse(Direction::forward, layer, 0);
  return {.microbatch = step().microbatch, .slot = plan_.slot(step().chunk, step().microbatch)};
}

void ScheduleTurn::check_backward(int layer, int microbatch) const {
  if (step().direction != Direction::backward || layer != expected_layer() || microbatch != step().microbatch) {
    refuse(Direction::backward, layer, microbatch);
  }
}

void ScheduleTurn::check_weights(int layer, int microbatch) const {
  if (!expects_weights(layer) || (microbatch != 0 && microbatch != step().microbatch)) {
    refuse(Direction::weight_gradients, layer, microbatch);
  }
}

void ScheduleTurn::advance() {
  if (++layers_done_ < schedule_.layers(step().chunk)) return;
  layers_done_ = 0;
  if (++position_ == schedule_.steps().size()) position_ = 0;
}

void ScheduleTurn::restart() noexcept {
  position_ = 0;
  layers_done_ = 0;
  ++restarts_;
}

std::string ScheduleTurn::in_words(const ScheduleStep& step, int layer) const {
  const std::string text = describe(step);
  if (schedule_.layers(step.chunk) == 1) return text;
  return fmt::format("{}, layer {}", text, layer - schedule_.first_layer(step.chunk) + 1);
}

// A forward does not say its microbatch, and gradients of weights may not; it is the next one of the chunk.
void ScheduleTurn::refuse(Direction direction, int layer, int microbatch) const {
  const int chunk = chunk_of(layer);
  if (microbatch == 0) {
    const auto steps = schedule_.steps();
    microbatch = 1 + static_cast<int>(std::count_if(
                         steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(position_),
                         [&](const ScheduleStep& done) { return done.chunk == chunk && done.direction == direction; }));
    // Its layers before this one may have run already.
    const bool running = step().chunk == chunk && step().direction == direction;
    if (running && layer < expected_layer()) ++microbatch;
    microbatch = (microbatch - 1) % schedule_.microbatches() + 1;
  }
  throw ScheduleError(
      {.what = fmt::format("a call is out of the schedule's order: expected {}, got {}; nothing was launched",
                           in_words(step(), expected_layer()),
                           in_words({.direction = direction, .chunk = chunk, .microbatch = microbatch}, layer)),
       .where = fmt::format("step {} of {} of the schedule {}", position_ + 1, schedule_.steps().size(),
                            schedule_.to_string()),
       .fix = "call the callables in the order of the schedule they were captured with; after an abandoned iteration, "
              "call restart_schedule()",
       .rule = "PG1105"});
}

}  // namespace pianola::callable
