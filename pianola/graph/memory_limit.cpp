#include <pianola/graph/memory_limit.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/apart_plan.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/region_space.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

#include <string>

namespace pianola::graph {
namespace {

// The region is one block of torch's, or what those of the pool grow to; what other streams ask for lies outside of it.
std::uint64_t planned_pool_bytes(const memory::StepRun& run, const PoolState* pool) {
  auto [main, others] = memory::by_main_stream(run);
  if (const auto shared = pool != nullptr ? pool->shared_regions() : std::nullopt) {
    std::uint64_t wanted = 0, wanted_kept = 0;
    if (shared->keeps_apart) {
      const memory::ApartPlan plan = memory::plan_apart(main.blocks, shared->taken, main.interference);
      wanted = plan.scratch_bytes;
      wanted_kept = plan.kept_bytes;
    } else {
      wanted = memory::plan_offsets(main.blocks, shared->taken.of_scratch, main.interference).bytes;
    }
    return memory::grown_region(shared->bytes, wanted) + memory::grown_region(shared->kept_bytes, wanted_kept) +
           memory::pool_bytes(others.blocks, allocator_settings());
  }
  const std::uint64_t region = memory::plan_offsets(main.blocks, main.interference).bytes;
  if (region != 0) others.blocks.insert(others.blocks.begin(), {.made = -1, .bytes = region});
  return memory::pool_bytes(others.blocks, allocator_settings());
}

std::string bytes_in_words(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

void check_memory(const std::optional<memory::StepRun>& run, std::size_t limit, bool plan_memory,
                  const PoolState* pool) {
  if (limit == 0 && !plan_memory) return;
  if (!run) {
    const char* const option = limit != 0 ? "memory_limit" : "plan_memory";
    throw UnsupportedError(
        {.what = fmt::format("{} is set, and torch's allocator does not tell what it hands out", option),
         .fix = fmt::format("leave {} out, or take out what is in the place of torch's allocator", option)});
  }
  if (limit == 0) return;
  const std::uint64_t bytes =
      plan_memory ? planned_pool_bytes(*run, pool) : memory::pool_bytes(run->blocks, allocator_settings());
  if (bytes <= limit) return;
  throw OutOfMemoryError(
      {.what = fmt::format("a graph's pool would take {}, and memory_limit is {}; nothing was recorded",
                           bytes_in_words(bytes), bytes_in_words(limit)),
       .fix =
           fmt::format("raise memory_limit, use smaller batches, or capture a part of the step; predict_memory() says "
                       "what takes the most{}",
                       plan_memory ? ""
                                   : "; plan_memory, or expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF, make "
                                     "fewer fragments"),
       .rule = "PG908"});
}

void check_static_inputs(std::span<const at::Tensor> inputs, std::size_t limit) {
  if (limit == 0) return;
  std::uint64_t bytes = 0;
  for (const at::Tensor& input : inputs) {
    if (trace::storage_of(input) != nullptr && input.layout() == at::kStrided) bytes += input.nbytes();
  }
  if (bytes <= limit) return;
  throw OutOfMemoryError(
      {.what = fmt::format("the static inputs of a graph take {} by themselves, and memory_limit is {}; nothing was "
                           "recorded",
                           bytes_in_words(bytes), bytes_in_words(limit)),
       .fix = "raise memory_limit, or use smaller batches",
       .rule = "PG908"});
}

}  // namespace pianola::graph
