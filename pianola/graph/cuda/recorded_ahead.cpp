#include <pianola/graph/cuda/recorded_ahead.hpp>

#include <pianola/graph/lane_memory.hpp>
#include <pianola/memory/block.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace pianola::graph {

std::shared_ptr<PlannedMemory> RecordedAhead::begin(c10::cuda::CUDAStream stream, c10::MempoolId_t pool) {
  constexpr std::uint64_t kMore = std::uint64_t{64} << 20U;  // it may ask for other blocks than the run before
  const std::optional<memory::StepRun> run = std::exchange(run_, std::nullopt);
  std::uint64_t bytes = 0;
  for (const memory::Block& block : run->blocks) bytes += memory::in_whole_units(block.bytes);
  std::shared_ptr<PlannedMemory> planned = PlannedMemory::begin_apart(stream, pool, bytes + bytes / 4 + kMore);
  if (planned) bytes_ = {.begin = planned->address(), .end = planned->address() + planned->bytes()};
  return planned;
}

std::optional<memory::StepRun> RecordedAhead::keep_lanes_apart(Branches& branches, Branches::Captured captured,
                                                               c10::cuda::CUDAStream stream, const memory::StepRun& run,
                                                               std::span<const ByteSpan> places) const {
  captured.allocated.push_back(bytes_);  // with what lies between and behind blocks: kernels may be given an end
  const std::optional<parallel::Plan> plan = branches.plan(captured);
  if (!plan) return std::nullopt;
  memory::StepRun main = memory::by_main_stream(run, reinterpret_cast<std::uintptr_t>(stream.stream())).first;
  std::vector<ByteSpan> places_of_main;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (run.streams[i] == main.main) places_of_main.push_back(places[i]);
  }
  return run_on_lanes(std::move(main), *plan, places_of_main, branches.memory_limit());
}

void RecordedAhead::check_nothing_carried(const OpTrace& trace, const std::vector<ByteSpan>& allocated) {
  if (bytes_.empty()) return;
  const std::vector<ByteSpan> first = {std::exchange(bytes_, {})};
  graph::check_nothing_carried(trace, without(first, merged(allocated)));
}

}  // namespace pianola::graph
