#include <pianola/graph/lane_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/parallel/lane_interference.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

namespace pianola::graph {
namespace {

constexpr std::size_t kMostBlocks = 20'000;                    // a table of pairs takes 50 MB for so many
constexpr std::uint64_t kLeastMore = std::uint64_t{2} << 20U;  // as torch's allocator rounds segments
// How sure the model has to be, one after the other, in mean times of a unit.
constexpr std::array kSure = {parallel::kNeverSure, 4.0, 1.0, 0.0, -1.0, -4.0, -16.0, -64.0, -parallel::kNeverSure};

std::uint64_t limit_of(const memory::StepRun& run, std::size_t most_more) {
  const std::uint64_t in_use = memory::least_bytes(run.blocks, {});
  return in_use + std::min<std::uint64_t>(most_more, std::max(in_use / 20, kLeastMore));
}

}  // namespace

std::optional<memory::StepRun> run_on_lanes(memory::StepRun run, const parallel::Plan& plan,
                                            std::span<const ByteSpan> places, std::size_t most_more) {
  if (run.blocks.size() > kMostBlocks) return std::nullopt;
  const std::uint64_t limit = limit_of(run, most_more);
  const double mean_us = plan.serial_us / static_cast<double>(std::max<std::size_t>(plan.units.size(), 1));
  const auto apart = [&](double sure) {
    return parallel::interference_on_lanes(plan, run.blocks, places, sure * mean_us);
  };
  const auto fits = [&](const memory::Interference& interference) {
    return memory::least_bytes(run.blocks, interference) <= limit &&
           memory::plan_offsets(run.blocks, interference).bytes <= limit;
  };
  run.interference = apart(kSure.front());
  if (fits(run.interference)) return run;
  // What is less sure keeps fewer blocks apart. A plan may take a second, so the order is searched by halves.
  const auto levels = std::span(kSure).subspan(1, kSure.size() - 2);
  const auto found = std::ranges::partition_point(levels, [&](double sure) { return !fits(apart(sure)); });
  run.interference = apart(found == levels.end() ? kSure.back() : *found);
  return run;
}

void check_nothing_carried(const OpTrace& trace, std::span<const ByteSpan> first) {
  if (first.empty()) return;
  for (const OpRecord& op : trace.ops()) {
    for (const TensorRecord& input : trace.inputs(op)) {
      if (input.made_in_step || input.span_bytes == 0) continue;
      const auto address = reinterpret_cast<std::uintptr_t>(input.address);
      if (std::ranges::none_of(first, [&](const ByteSpan& span) { return span.contains(address); })) continue;
      throw CaptureError(
          {.what = fmt::format(
               "{} uses a tensor that the step's run before made. Where memory is planned by a recording, that run "
               "computes nothing",
               trace.name(op)),
           .where = trace.place(op),
           .fix = "keep what one run leaves for the next in a tensor from outside of the step, and write it in place "
                  "(copy_); or leave plan_memory out"});
    }
  }
}

}  // namespace pianola::graph
