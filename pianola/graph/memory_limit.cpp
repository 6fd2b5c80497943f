#include <pianola/graph/memory_limit.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/memory/allocator_model.hpp>

#include <fmt/format.h>

namespace pianola::graph {

std::uint64_t pool_bytes(const std::vector<trace::StepBlock>& blocks) {
  std::vector<memory::Block> lives;
  lives.reserve(blocks.size());
  for (const trace::StepBlock& block : blocks) lives.push_back(block.life);
  return memory::pool_bytes(lives);
}

void check_memory_limit(std::optional<std::uint64_t> pool, std::size_t limit) {
  if (!pool) {
    throw UnsupportedError({.what = "memory_limit is set, and torch's allocator does not tell what it hands out",
                            .fix = "leave memory_limit out, or take out what is in the place of torch's allocator"});
  }
  if (*pool <= limit) return;
  const auto in_words = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  throw OutOfMemoryError(
      {.what = fmt::format("a graph's pool would take {}, and memory_limit is {}; nothing was recorded",
                           in_words(*pool), in_words(limit)),
       .fix =
           "raise memory_limit, use smaller batches, or capture a part of the step; predict_memory() says what takes "
           "the most",
       .rule = "PG908"});
}

}  // namespace pianola::graph
