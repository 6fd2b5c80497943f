#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

namespace pianola::bench::cuda {
namespace {

// The same step three ways: eager, and captured by torch and by Pianola. All have trained equally long.
struct Steps {
  Steps() {
    Mlp(MlpShape{}, kDevice).train_step();  // torch's capture needs its libraries started on this stream
    torch_graph = torch_capture([this] { theirs.train_step(); });
    graph.capture([this] { ours.train_step(); });
    for (int step = 0; step < 5; ++step) {
      eager.train_step();
      torch_graph->replay();
      graph.replay();
      check_equal("at::cuda::CUDAGraph::replay()", theirs.state(), eager.state());
      check_equal("Graph::replay()", ours.state(), eager.state());
    }
  }

  Mlp eager{MlpShape{}, kDevice};
  Mlp theirs{MlpShape{}, kDevice};
  Mlp ours{MlpShape{}, kDevice};
  std::unique_ptr<at::cuda::CUDAGraph> torch_graph;
  Graph graph{kDevice};
};

Case compare(Steps& steps, const char* measure, const Timer& timer, const Plan& plan) {
  const Contender contenders[] = {{"cudaGraphLaunch", bare_launch(steps.graph.raw_executable())},
                                  {"Graph::replay()", [&] { steps.graph.replay(); }},
                                  {"at::cuda::CUDAGraph::replay()", [&] { steps.torch_graph->replay(); }},
                                  {"eager C++", [&] { steps.eager.train_step(); }}};
  return {.name = "MLP 16 x 64, batch 32, AdamW",
          .measure = measure,
          .unit = "us",
          .baseline = "cudaGraphLaunch",
          .iterations = plan.iterations,
          .series = interleave(timer, contenders, plan)};
}

}  // namespace

std::vector<Case> training_step(const Settings& settings) {
  const OnPoolStream stream;
  Steps steps;
  Case device = compare(steps, "device-bound time per step", event_timer(), settings.plan(50));
  device.requirements = {at_most_ratio(device, "Graph::replay()", 1.01)};
  Case host = compare(steps, "host time per step", host_timer(synchronize, 20), settings.plan(40));
  host.requirements = {within(host, "Graph::replay()", 3, 0)};
  return {std::move(device), std::move(host)};
}

}  // namespace pianola::bench::cuda
