#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

namespace pianola::bench::cuda {
namespace {

// A capture of its own step, again and again; what it leaves is dropped between blocks, so that each begins with no
// memory to reuse.
struct TimedCaptures {
  TimedCaptures() {
    for (int step = 0; step < 3; ++step) model.train_step();
  }

  void by_torch() {
    torch_graph = torch_capture([this] { model.train_step(); });
  }
  void by_pianola(bool trace) {
    graph.capture([this] { model.train_step(); }, {.warmup = 0, .trace = trace});
  }
  void by_update() {
    graph.update([this] { model.train_step(); }, {.warmup = 0});
  }
  void by_reset() {
    graph.reset();
    by_pianola(/*trace=*/true);
  }
  void drop() {
    torch_graph.reset();
    graph.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();
    synchronize();
  }

  Mlp model{MlpShape{}, kDevice};
  std::unique_ptr<at::cuda::CUDAGraph> torch_graph;
  Graph graph{kDevice};
};

// Of one that has been stepped as often as a new one, which has not been replayed yet.
void check_replays(const char* what, TimedCaptures& captured) {
  Mlp eager(MlpShape{}, kDevice);
  for (int step = 0; step < 3; ++step) eager.train_step();
  for (int step = 0; step < 3; ++step) {
    eager.train_step();
    captured.graph.replay();
    check_equal(what, captured.model.state(), eager.state());
  }
}

void check_captures(TimedCaptures& theirs, TimedCaptures& ours) {
  Mlp eager(MlpShape{}, kDevice);
  for (int step = 0; step < 3; ++step) eager.train_step();
  theirs.by_torch();
  ours.by_pianola(/*trace=*/true);
  for (int step = 0; step < 3; ++step) {
    eager.train_step();
    theirs.torch_graph->replay();
    ours.graph.replay();
    check_equal("torch's capture", theirs.model.state(), eager.state());
    check_equal("Graph::capture", ours.model.state(), eager.state());
  }
  theirs.drop();
  ours.drop();
}

// Of a graph that holds a capture of the step already.
Case time_to_capture_again(const Settings& settings) {
  TimedCaptures updated, anew;
  updated.by_pianola(/*trace=*/true);
  updated.by_update();
  check_replays("Graph::update", updated);
  anew.by_pianola(/*trace=*/true);
  const Contender contenders[] = {{"reset and capture", [&] { anew.by_reset(); }},
                                  {"update", [&] { updated.by_update(); }}};
  const Plan plan = settings.plan(1);
  Case result{.name = "MLP 16 x 64 training step, captured again, no warm-up",
              .measure = "host time of the second capture",
              .unit = "us",
              .baseline = "reset and capture",
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize), contenders, plan)};
  result.requirements = {at_most_ratio(result, "update", 1.0)};
  return result;
}

}  // namespace

std::vector<Case> capture_time(const Settings& settings) {
  const OnPoolStream stream;
  TimedCaptures theirs;
  TimedCaptures traced;
  TimedCaptures plain;
  check_captures(theirs, traced);
  const Contender contenders[] = {
      {"torch capture", [&] { theirs.by_torch(); }, [&] { theirs.drop(); }},
      {"Graph::capture, trace on", [&] { traced.by_pianola(true); }, [&] { traced.drop(); }},
      {"Graph::capture, trace off", [&] { plain.by_pianola(false); }, [&] { plain.drop(); }}};
  const Plan plan = settings.plan(1);
  Case result{.name = "MLP 16 x 64 training step, no warm-up",
              .measure = "host time of capture and instantiation",
              .unit = "us",
              .baseline = "torch capture",
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize), contenders, plan)};
  result.requirements = {at_most_ratio(result, "Graph::capture, trace on", 1.6),
                         at_most_ratio(result, "Graph::capture, trace off", 1.3)};
  return {std::move(result), time_to_capture_again(settings)};
}

}  // namespace pianola::bench::cuda
