// The orders that pipelines commonly use. All three are a list of forwards and one of backwards, interlocked after some
// number of warm-up forwards.
#include <pianola/core/error.hpp>
#include <pianola/schedule/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pianola {
namespace {

constexpr std::int64_t kMaxForwards = 100'000;  // a slip of the keyboard shall not fill the memory

void check_positive(std::string_view name, int value) {
  if (value < 1) throw ConfigError({.what = fmt::format("{} must be 1 or more, got {}", name, value)});
}

void check(const PipelineShape& shape) {
  check_positive("pipeline_size", shape.pipeline_size);
  check_positive("virtual_size", shape.virtual_size);
  check_positive("microbatches", shape.microbatches);
  if (shape.rank < 0 || shape.rank >= shape.pipeline_size) {
    throw ConfigError({.what = fmt::format("rank must be 0 to {} in a pipeline of {}, got {}", shape.pipeline_size - 1,
                                           shape.pipeline_size, shape.rank)});
  }
  if (std::int64_t{shape.microbatches} * shape.virtual_size > kMaxForwards) {
    throw ConfigError({.what = fmt::format("microbatches times virtual_size must be {} or less, got {} times {}",
                                           kMaxForwards, shape.microbatches, shape.virtual_size)});
  }
}

void check_one_chunk(const PipelineShape& shape, std::string_view schedule) {
  check(shape);
  if (shape.virtual_size == 1) return;
  throw ConfigError(
      {.what = fmt::format("{} has one chunk per rank, got virtual_size {}", schedule, shape.virtual_size),
       .fix = "use the interleaved schedule for several chunks per rank"});
}

void check_interleaved(const PipelineShape& shape) {
  if (shape.pipeline_size == 1) {
    throw ConfigError({.what = fmt::format("interleaving {} chunks per rank needs a pipeline_size of 2 or more, got 1",
                                           shape.virtual_size),
                       .fix = "use virtual_size 1 where there is no pipeline"});
  }
  if (shape.microbatches % shape.pipeline_size != 0) {
    const int below = shape.microbatches / shape.pipeline_size * shape.pipeline_size;
    throw ConfigError({.what = fmt::format("the interleaved schedule needs microbatches to be a multiple of "
                                           "pipeline_size {}, got {}",
                                           shape.pipeline_size, shape.microbatches),
                       .fix = below == 0
                                  ? fmt::format("use {} microbatches", shape.pipeline_size)
                                  : fmt::format("use {} or {} microbatches", below, below + shape.pipeline_size)});
  }
}

// Each chunk in turn for one group of microbatches, then for the next group. Backwards visit the chunks last to first.
std::vector<int> forward_chunks(const PipelineShape& shape) {
  std::vector<int> chunks;
  for (int group = 0; group < shape.microbatches / shape.pipeline_size; ++group) {
    for (int chunk = 1; chunk <= shape.virtual_size; ++chunk)
      chunks.insert(chunks.end(), static_cast<std::size_t>(shape.pipeline_size), chunk);
  }
  return chunks;
}

// `warmup` forwards, then a forward and a backward in turn, then the backwards that are left.
std::vector<double> interlock(const std::vector<int>& forwards, int chunks, std::int64_t warmup) {
  const auto lead = static_cast<std::size_t>(std::min(warmup, static_cast<std::int64_t>(forwards.size())));
  std::vector<double> order;
  order.reserve(2 * forwards.size());
  for (std::size_t i = 0; i < forwards.size() + lead; ++i) {
    if (i < forwards.size()) order.push_back(forwards[i]);
    if (i >= lead) order.push_back(forwards[i - lead] - chunks - 1);
  }
  return order;
}

std::vector<int> one_chunk(const PipelineShape& shape) {
  return std::vector<int>(static_cast<std::size_t>(shape.microbatches), 1);
}

}  // namespace

Schedule Schedule::gpipe(const PipelineShape& shape, const ScheduleOptions& options) {
  check_one_chunk(shape, "GPipe");
  return Schedule(interlock(one_chunk(shape), 1, shape.microbatches), options);
}

Schedule Schedule::one_f_one_b(const PipelineShape& shape, const ScheduleOptions& options) {
  check_one_chunk(shape, "1F1B");
  return Schedule(interlock(one_chunk(shape), 1, shape.pipeline_size - shape.rank - 1), options);
}

Schedule Schedule::interleaved(const PipelineShape& shape, const ScheduleOptions& options) {
  check(shape);
  if (shape.virtual_size == 1) return one_f_one_b(shape, options);
  check_interleaved(shape);
  const std::int64_t ranks_after = shape.pipeline_size - shape.rank - 1;
  const std::int64_t warmup = ranks_after * 2 + std::int64_t{shape.virtual_size - 1} * shape.pipeline_size;
  return Schedule(interlock(forward_chunks(shape), shape.virtual_size, warmup), options);
}

}  // namespace pianola
