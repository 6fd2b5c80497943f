#include "benchmark.hpp"
#include "cpu/one_thread.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace pianola::bench::cpu {
namespace {

// A training step twice: one is run eagerly, the other is captured, and both have trained equally long.
struct Pair {
  explicit Pair(std::int64_t width)
      : eager({.width = width}, c10::kCPU), taped({.width = width}, c10::kCPU), graph(c10::kCPU) {
    graph.capture([this] { taped.train_step(); }, {.warmup = 1});
    for (int step = 0; step < 5; ++step) {
      eager.train_step();
      graph.replay();
      check_equal("the taped training step", taped.state(), eager.state());
    }
  }

  Mlp eager;
  Mlp taped;
  Graph graph;
};

Case step_time(const Settings& settings, std::int64_t width, double speedup) {
  Pair pair(width);
  const Contender contenders[] = {{"eager C++", [&] { pair.eager.train_step(); }},
                                  {"Graph::replay()", [&] { pair.graph.replay(); }}};
  const Plan plan = settings.plan(iterations_for(50, contenders[0]));
  Case result{.name = fmt::format("MLP 16 x {}, batch 32, AdamW, one thread", width),
              .measure = "time per step",
              .unit = "us",
              .baseline = "eager C++",
              .iterations = plan.iterations,
              .series = interleave(host_timer(), contenders, plan)};
  result.requirements = {at_least_speedup(result, "Graph::replay()", speedup)};
  return result;
}

double heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

Case memory_growth(const Settings& settings) {
  Pair pair(64);
  const auto replay = [&](int count) {
    for (int i = 0; i < count; ++i) pair.graph.replay();
  };
  replay(100);
  const double heap_before = heap_bytes();
  const double resident_before = resident_bytes();
  const int replays = settings.some(2000);
  replay(replays);
  const double heap = heap_bytes() - heap_before;
  const double resident = resident_bytes() - resident_before;
  Case result{.name = fmt::format("Growth over {} replays, MLP 16 x 64", replays),
              .measure = "bytes in use after less before",
              .unit = "bytes",
              .baseline = "",
              .iterations = replays,
              .series = {{"heap", {heap}}, {"resident set", {resident}}}};
  result.requirements = {at_most(result, "heap and resident set: no growth", 0)};
  return result;
}

}  // namespace

std::vector<Case> tape_training_step(const Settings& settings) {
  const OneThread one_thread;
  return {memory_growth(settings), step_time(settings, 64, 1.5), step_time(settings, 256, 0.98)};
}

}  // namespace pianola::bench::cpu
