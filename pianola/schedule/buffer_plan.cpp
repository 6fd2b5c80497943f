#include <pianola/schedule/buffer_plan.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <iterator>
#include <queue>

namespace pianola {
namespace {

constexpr int kUntaken = 0;

// Where one microbatch is in one chunk.
struct Visit {
  int slot = 0;
  int forward = 0;  // steps, counted from 1
  int backward = 0;
  int last = 0;  // the backward, or the delayed gradients of weights
  int slot_retaken = kUntaken;
};

// One chunk while its steps are walked through.
struct Chunk {
  std::vector<Visit> visits;         // of each microbatch
  std::vector<std::size_t> holders;  // the microbatch that each slot holds or held last
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free_slots;  // the first one on top
};

void forward(Chunk& chunk, int step) {
  std::size_t slot = chunk.holders.size();
  if (chunk.free_slots.empty()) {
    chunk.holders.push_back(chunk.visits.size());
  } else {
    slot = chunk.free_slots.top();
    chunk.free_slots.pop();
    chunk.visits[chunk.holders[slot]].slot_retaken = step;
    chunk.holders[slot] = chunk.visits.size();
  }
  chunk.visits.push_back({.slot = static_cast<int>(slot), .forward = step});
}

void end(Chunk& chunk, int step, std::size_t microbatch) {
  Visit& visit = chunk.visits[microbatch];
  visit.last = step;
  chunk.free_slots.push(static_cast<std::size_t>(visit.slot));
}

std::vector<Chunk> walk(const Schedule& schedule) {
  std::vector<Chunk> chunks(static_cast<std::size_t>(schedule.chunks()));
  for (int number = 1; const ScheduleStep& step : schedule.steps()) {
    Chunk& chunk = chunks[static_cast<std::size_t>(step.chunk - 1)];
    const auto microbatch = static_cast<std::size_t>(step.microbatch - 1);
    if (step.direction == Direction::forward) {
      forward(chunk, number);
    } else {
      if (step.direction == Direction::backward) chunk.visits[microbatch].backward = number;
      const bool is_last =
          step.direction == Direction::weight_gradients || !schedule.delays_weight_gradients(step.chunk);
      if (is_last) end(chunk, number, microbatch);
    }
    ++number;
  }
  return chunks;
}

BufferLifetime lifetime(BufferKind kind, int chunk, int microbatch, const Visit& visit, int last_step) {
  BufferLifetime life{.kind = kind, .chunk = chunk, .microbatch = microbatch, .buffer = visit.slot};
  life.first_step = visit.forward;
  life.last_step = visit.last;
  switch (kind) {
    case BufferKind::input:
    case BufferKind::output:
      break;
    case BufferKind::output_gradient:
      life.buffer = 0;
      life.first_step = life.last_step = visit.backward;
      break;
    case BufferKind::input_gradient:
      life.first_step = visit.backward;
      life.last_step = visit.slot_retaken == kUntaken ? last_step : visit.slot_retaken - 1;
      break;
  }
  return life;
}

}  // namespace

BufferPlan::BufferPlan(const Schedule& schedule) : microbatches_(schedule.microbatches()) {
  const auto last_step = static_cast<int>(schedule.steps().size());
  for (const Chunk& chunk : walk(schedule)) {
    slots_.push_back(static_cast<int>(chunk.holders.size()));
    for (int microbatch = 1; const Visit& visit : chunk.visits) {
      for (const BufferKind kind : kBufferKinds) {
        lifetimes_.push_back(lifetime(kind, chunks(), microbatch, visit, last_step));
      }
      ++microbatch;
    }
  }
}

int BufferPlan::slots(int chunk) const {
  if (chunk >= 1 && chunk <= chunks()) return slots_[static_cast<std::size_t>(chunk - 1)];
  if (slots_.empty()) throw UsageError({.what = fmt::format("chunk {} was asked for, but the plan is empty", chunk)});
  throw UsageError({.what = fmt::format("chunk must be 1 to {}, got {}", chunks(), chunk)});
}

int BufferPlan::slot(int chunk, int microbatch) const {
  (void)slots(chunk);  // refuses a wrong chunk
  if (microbatch < 1 || microbatch > microbatches_) {
    throw UsageError({.what = fmt::format("microbatch must be 1 to {}, got {}", microbatches_, microbatch)});
  }
  // The lifetimes are in order, and the first of each microbatch is that of its input, which lies in the slot.
  const auto visit = static_cast<std::size_t>(chunk - 1) * static_cast<std::size_t>(microbatches_) +
                     static_cast<std::size_t>(microbatch - 1);
  return lifetimes_[visit * std::size(kBufferKinds)].buffer;
}

int BufferPlan::unique_buffers(BufferKind kind) const noexcept {
  if (kind == BufferKind::output_gradient) return chunks();
  int slots = 0;
  for (const int number : slots_) slots += number;
  return slots;
}

int BufferPlan::unique_buffers() const noexcept {
  int buffers = 0;
  for (const BufferKind kind : kBufferKinds) buffers += unique_buffers(kind);
  return buffers;
}

int BufferPlan::buffers_without_reuse(BufferKind) const noexcept { return chunks() * microbatches_; }

int BufferPlan::buffers_without_reuse() const noexcept {
  return buffers_without_reuse(BufferKind::input) * static_cast<int>(std::size(kBufferKinds));
}

}  // namespace pianola
