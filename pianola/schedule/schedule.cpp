#include <pianola/schedule/schedule.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/plural.hpp>
#include <pianola/schedule/schedule_order.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pianola {
namespace {

[[noreturn]] void refuse_layers(std::string what) {
  throw ScheduleError({.what = std::move(what),
                       .where = "layers_per_chunk",
                       .fix = "give one positive number for all chunks, or one for each"});
}

}  // namespace

std::string describe(const ScheduleStep& step) {
  constexpr const char* kWords[] = {"forward", "backward", "weight gradients"};
  return fmt::format("{} of chunk {}, microbatch {}", kWords[static_cast<std::size_t>(step.direction)], step.chunk,
                     step.microbatch);
}

Schedule::Schedule(std::span<const double> order, const ScheduleOptions& options)
    : steps_(detail::checked_steps(order)) {
  int chunks = 0;
  for (const ScheduleStep& step : steps_) chunks = std::max(chunks, step.chunk);
  chunks_.resize(static_cast<std::size_t>(chunks));
  count_layers(options.layers_per_chunk);
  for (const ScheduleStep& step : steps_) {
    if (step.direction == Direction::weight_gradients) chunks_[static_cast<std::size_t>(step.chunk - 1)].delays = true;
  }
  std::vector<int> in_flight(chunks_.size(), 0);
  for (const ScheduleStep& step : steps_) {
    const auto number = static_cast<std::size_t>(step.chunk - 1);
    Chunk& chunk = chunks_[number];
    if (step.direction == Direction::forward) {
      chunk.depth = std::max(chunk.depth, ++in_flight[number]);
    } else if (step.direction == (chunk.delays ? Direction::weight_gradients : Direction::backward)) {
      --in_flight[number];
    }
  }
}

void Schedule::count_layers(const std::vector<int>& layers) {
  if (layers.size() > 1 && layers.size() != chunks_.size()) {
    refuse_layers(fmt::format("layers_per_chunk has {} numbers, but the schedule has {} chunk{}", layers.size(),
                              chunks_.size(), plural(chunks_.size())));
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const int number = layers.empty() ? 1 : layers[layers.size() == 1 ? 0 : i];
    if (number <= 0) refuse_layers(fmt::format("chunk {} must have 1 layer or more, got {}", i + 1, number));
    chunks_[i].layers = number;
    chunks_[i].first_layer = static_cast<int>(total);
    total += number;
    if (total > std::numeric_limits<int>::max()) refuse_layers(fmt::format("{} layers are too many", total));
  }
}

Schedule Schedule::parse(std::string_view text, const ScheduleOptions& options) {
  return from_order(detail::parse_entries(text), options);
}

Schedule Schedule::from_order(std::span<const double> order, const ScheduleOptions& options) {
  return Schedule(order, options);
}

int Schedule::microbatches() const noexcept {
  return static_cast<int>(std::count_if(steps_.begin(), steps_.end(), [](const ScheduleStep& step) {
    return step.chunk == 1 && step.direction == Direction::forward;
  }));
}

const Schedule::Chunk& Schedule::at(int chunk) const {
  if (chunk >= 1 && chunk <= chunks()) return chunks_[static_cast<std::size_t>(chunk - 1)];
  if (empty()) throw UsageError({.what = fmt::format("chunk {} was asked for, but the schedule is empty", chunk)});
  throw UsageError({.what = fmt::format("chunk must be 1 to {}, got {}", chunks(), chunk)});
}

int Schedule::layers(int chunk) const { return at(chunk).layers; }

int Schedule::total_layers() const noexcept { return empty() ? 0 : chunks_.back().first_layer + chunks_.back().layers; }

int Schedule::first_layer(int chunk) const { return at(chunk).first_layer; }

int Schedule::depth(int chunk) const { return at(chunk).depth; }

bool Schedule::delays_weight_gradients(int chunk) const { return at(chunk).delays; }

std::string Schedule::to_string() const {
  std::string text;
  for (const auto& [direction, chunk, microbatch] : steps_) {
    if (!text.empty()) text += ',';
    text += std::to_string(direction == Direction::forward ? chunk : -chunk);
    if (direction == Direction::weight_gradients) text += ".5";
  }
  return text;
}

}  // namespace pianola
