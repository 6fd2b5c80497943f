#include <pianola/graph/cuda/numbered_replay.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/graph/pool_state.hpp>

#include <c10/cuda/CUDAGuard.h>

#include <fmt/format.h>

namespace pianola::graph {

bool NumberedReplay::finish(CUgraph graph, const OpTrace& trace, std::span<const CUgraphNode> before,
                            std::span<const CUgraphNode> behind, std::function<void(ExecutableMemory)> made) {
  calls_.finish(trace);
  if (calls_.empty() && !any_wanted_) return false;
  segments_.emplace(graph, trace, before, behind, std::move(made));
  return true;
}

void NumberedReplay::give(CUgraphExec executable, const RewiredGraph* rewired) {
  calls_.settle();
  const auto node = [&](CUgraphNode captured) {
    if (rewired == nullptr) return captured;
    CUgraphNode& copy = rewired_nodes_[captured];
    if (copy == nullptr) {
      check(Driver::get().graph_node_find_in_clone(&copy, captured, rewired->get()), "cuGraphNodeFindInClone");
    }
    return copy;
  };
  calls_.give({.executable = executable, .node = node, .first = 1, .last = Segments::kEnd, .given_at = given_at_});
}

// The segments between the operations that have to be run by hand, made and given their numbers: in the middle of a step nothing
// of that may fail. nullptr: there are no operations between.
std::vector<Segments::Segment*> NumberedReplay::pieces(std::size_t first, std::size_t last) {
  std::vector<Segments::Segment*> pieces;
  const auto add = [&](std::size_t from, std::size_t to) {
    Segments::Segment* const segment = from > to ? nullptr : &segments_->get(from, to);
    const bool has_nodes = segment != nullptr && segment->executable.get() != nullptr;
    pieces.push_back(has_nodes ? segment : nullptr);
    if (!has_nodes) return;
    calls_.give({.executable = segment->executable.get(),
                 .node = [segment](CUgraphNode captured) { return segment->node(captured); },
                 .first = from,
                 .last = to,
                 .given_at = segment->given_at});
  };
  std::vector<NumberedCalls::ByHand> by_hand;
  do {  // what cannot be given its number has to be run by hand, too
    pieces.clear();
    by_hand = calls_.by_hand();
    std::size_t from = first;
    for (const auto& [operation, place, is_moved] : by_hand) {
      if (place < first || place > last) continue;
      add(from, is_moved ? place : place - 1);
      from = place + 1;
    }
    add(from, last);
  } while (by_hand != calls_.by_hand());
  return pieces;
}

void NumberedReplay::play(Launcher& launcher, CudaPool& pool, std::size_t first, std::size_t last, bool holds_scratch) {
  const c10::cuda::OptionalCUDAGuard on_device(device_);
  if (pool.is_asleep()) [[unlikely]]
    pool.check_ready();  // its pieces may have no executables
  const std::vector<Segments::Segment*> segments = pieces(first, last);
  const std::vector<NumberedCalls::ByHand> by_hand = calls_.by_hand();
  std::optional<PoolState::InUse> in_use;
  if (!by_hand.empty()) in_use.emplace(pool);
  std::optional<PoolState::InPieces> in_pieces;
  if (holds_scratch && !by_hand.empty()) in_pieces.emplace(pool);
  auto segment = segments.begin();
  bool is_first = first == 1;
  const auto launch_next = [&] {
    const bool is_last = segment + 1 == segments.end() && last == Segments::kEnd;
    // The first of all is asked whether it may run, and the last one ends the replay, also where they are empty.
    if (*segment != nullptr || is_first || is_last) {
      launcher.launch(pool, *segment == nullptr ? nullptr : &(*segment)->executable,
                      {.is_first = is_first, .is_last = is_last});
    }
    is_first = false;
    ++segment;
  };
  for (const auto& [operation, place, is_moved] : by_hand) {
    if (place < first || place > last) continue;
    launch_next();
    failed_ = operation;
    run_by_hand(launcher, operation);
    failed_ = 0;
  }
  launch_next();
}

// A graph's numbers begin where its first piece is launched: what an island drew from there on, the next piece would draw again.
void NumberedReplay::run_by_hand(const Launcher& launcher, std::size_t operation) {
  const std::uint64_t before = launcher.place_of_generators();
  calls_.run(operation);
  if (launcher.place_of_generators() == before) return;
  throw UsageError(
      {.what =
           "a part that stays eager drew random numbers from a generator that its graph draws from too, which on CUDA "
           "is not done yet; what the step does before it has run",
       .where = fmt::format("operation {} of the step", operation),
       .fix = "draw outside of that part and pass it what was drawn, or draw there from a generator of its own"});
}

}  // namespace pianola::graph
