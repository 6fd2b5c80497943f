#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::bench::cuda {
namespace {

// A chain of `nodes` small kernels, the last of which draws random numbers if wanted.
class Chain {
 public:
  Chain(int nodes, bool random) : adds_(random ? nodes - 1 : nodes), random_(random) {}

  void run() {
    for (int i = 0; i < adds_; ++i) sum_.add_(1);
    if (random_) noise_.bernoulli_(0.5);
  }

  [[nodiscard]] std::vector<at::Tensor> state() const { return {sum_, noise_}; }

 private:
  int adds_;
  bool random_;
  at::Tensor sum_ = at::zeros({32}, kDevice);
  at::Tensor noise_ = at::zeros({1024}, kDevice);
};

void seed() {
  at::Generator generator = at::globalContext().defaultGenerator(kDevice);
  generator.set_current_seed(7);
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

// Three runs from the same seed leave what three eager runs leave, after each of them.
void check_replay(const char* what, int nodes, bool random, const Chain& chain, const std::function<void()>& replay) {
  constexpr int kRuns = 3;
  Chain eager(nodes, random);
  std::vector<std::vector<at::Tensor>> expected;
  seed();
  for (int i = 0; i < kRuns; ++i) {
    eager.run();
    expected.push_back(copies(eager.state()));
  }
  seed();
  for (int i = 0; i < kRuns; ++i) {
    replay();
    check_equal(what, chain.state(), expected[static_cast<std::size_t>(i)]);
  }
}

Case host_time(const Settings& settings, int nodes, bool random) {
  Chain ours(nodes, random);
  Graph graph(kDevice);
  graph.capture([&] { ours.run(); }, {.warmup = 1});
  check_replay("Graph::replay()", nodes, random, ours, [&] { graph.replay(); });

  Chain theirs(nodes, random);
  const auto torch_graph = torch_capture([&] { theirs.run(); });
  check_replay("at::cuda::CUDAGraph::replay()", nodes, random, theirs, [&] { torch_graph->replay(); });

  const Contender contenders[] = {{"cudaGraphLaunch", bare_launch(graph.raw_executable())},
                                  {"Graph::replay()", [&] { graph.replay(); }},
                                  {"at::cuda::CUDAGraph::replay()", [&] { torch_graph->replay(); }}};
  // Large graphs take milliseconds each: fewer of them, and shorter bursts.
  Plan plan = settings.plan(std::clamp(300'000 / nodes, 60, 500));
  // torch's replay fills the tensors of the generator that all share, which costs the next replay of ours a fill too: with
  // random numbers the contenders take turns once a block only.
  if (!random) plan.turns = std::max(1, plan.iterations / 10);
  Case result{.name = fmt::format("{} nodes{}", nodes, random ? ", random numbers" : ""),
              .measure = "host time per call",
              .unit = "us",
              .baseline = "cudaGraphLaunch",
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize, nodes < 1000 ? 50 : 10), contenders, plan)};
  result.requirements = {within(result, "Graph::replay()", 0.5, 0.03)};
  return result;
}

}  // namespace

std::vector<Case> replay_host(const Settings& settings) {
  const OnPoolStream stream;
  std::vector<Case> cases;
  for (const bool random : {false, true}) {
    for (const int nodes : {10, 100, 1000, 10000}) cases.push_back(host_time(settings, nodes, random));
  }
  return cases;
}

}  // namespace pianola::bench::cuda
