#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "models/model.hpp"

#include <pianola/graph/eager.hpp>
#include <pianola/graph/graph.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::bench::cuda {
namespace {

constexpr int kIslandBurst = 10;
constexpr int kParts = 8;  // of which the cost of one is the mean
constexpr const char* kIsland = "a Graph, the read in pianola::eager";
constexpr const char* kTwoGraphs = "two at::cuda::CUDAGraph, the read between them";

// A training step that reads its loss before the backward pass.
struct ReadingTraining {
  ReadingTraining() {
    for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  }

  void forward() { loss = at::mse_loss(model(input), target); }
  void backward() {
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, parameters);
    const at::NoGradGuard no_grad;
    at::_foreach_add_(parameters, gradients, -1e-5);
  }
  void read(const at::Tensor& value) { seen.push_back(value.item<float>()); }
  void run() {
    forward();
    read(loss.detach());
    backward();
  }
  [[nodiscard]] std::vector<at::Tensor> state() const { return parameters; }

  Model model = linear_chain({.layers = 16, .width = 64}, kDevice);
  std::vector<at::Tensor> parameters = model.parameters();
  at::Tensor input = fixed_batch({32, 64}, kDevice), target = fixed_batch({32, 64}, kDevice);
  at::Tensor loss;
  std::vector<float> seen;
};

Case reads(const Settings& settings) {
  ReadingTraining eager_one, ours, unread, by_hand;
  const EagerPart part = eager([&](const std::vector<at::Tensor>& given) {
    ours.read(given[0]);
    return std::vector<at::Tensor>();
  });
  const auto step = [](ReadingTraining& training, const auto& read) {
    training.forward();
    read(training.loss.detach());
    training.backward();
  };
  Graph graph(kDevice), whole(kDevice);
  graph.capture([&] { step(ours, [&](const at::Tensor& loss) { part({loss}); }); }, {.warmup = 2});
  whole.capture([&] { step(unread, [](const at::Tensor&) {}); }, {.warmup = 2});
  ReadingTraining warm;
  warm.run();
  const auto first = torch_capture([&] { by_hand.forward(); });
  const auto second = torch_capture([&] { by_hand.backward(); });
  const Contender contenders[] = {{kTwoGraphs,
                                   [&] {
                                     first->replay();
                                     by_hand.read(by_hand.loss);
                                     second->replay();
                                   }},
                                  {kIsland, [&] { graph.replay(); }},
                                  {"a Graph, without the read", [&] { whole.replay(); }}};
  for (int i = 0; i < 5; ++i) {
    eager_one.run();
    for (const Contender& one : contenders) one.iteration();
  }
  for (const ReadingTraining* one : {&ours, &by_hand, &unread})
    check_equal("the step", one->state(), eager_one.state());
  const Plan plan = settings.plan(4 * kIslandBurst);
  Case result{.name = "a read between forward and backward passes: MLP 16 x 64, batch 32, SGD",
              .measure = "time per step",
              .unit = "us",
              .baseline = kTwoGraphs,
              .iterations = plan.iterations,
              .series = interleave(
                  [](const auto& iteration, int count) {
                    return time_bursts({"", iteration}, synchronize, count, kIslandBurst).wall;
                  },
                  contenders, plan)};
  result.requirements = {at_most_ratio(result, kIsland, 1.02), within(result, kIsland, 5, 0)};
  return result;
}

// --- What a part costs the host ---

struct Parts {
  bool has_backward;
  EagerPart part = eager([](const std::vector<at::Tensor>& given) { return std::vector{given[0] * 2}; });
  at::Tensor input = fixed_batch({32, 64}, kDevice);
  at::Tensor weight = at::ones({64}, at::TensorOptions(kDevice)).requires_grad_();
  at::Tensor leaf = fixed_batch({32, 64}, kDevice).requires_grad_();
  at::Tensor gradient = at::ones({32, 64}, at::TensorOptions(kDevice));
  at::Tensor result = {};

  void step(bool in_parts) {
    const at::AutoGradMode mode(has_backward);
    at::Tensor y = input * weight;  // what a graph holds
    for (int i = 0; i < kParts; ++i) y = in_parts ? part({y})[0] : y * 2;
    result = has_backward ? torch::autograd::grad({y.sum()}, {weight})[0] : y;
  }
  void alone() const {
    const at::AutoGradMode mode(has_backward);
    for (int i = 0; i < kParts; ++i) {
      const at::Tensor y = (has_backward ? leaf : input) * 2;
      if (has_backward) (void)torch::autograd::grad({y}, {leaf}, {gradient});
    }
  }
};

Case cost(const Settings& settings, bool has_backward, double limit) {
  Parts parts{.has_backward = has_backward}, plain{.has_backward = has_backward},
      eager_ones{.has_backward = has_backward};
  Graph with_parts(kDevice), in_one(kDevice);
  with_parts.capture([&] { parts.step(true); }, {.warmup = 2});
  in_one.capture([&] { plain.step(false); }, {.warmup = 2});
  with_parts.replay();
  in_one.replay();
  eager_ones.step(false);
  check_equal("the parts", {parts.result, plain.result}, {eager_ones.result, eager_ones.result});
  const std::string names[] = {fmt::format("{} parts that stay eager", kParts), "the same in one graph",
                               "the operations of the parts alone"};
  const Contender contenders[] = {{names[0], [&] { with_parts.replay(); }},
                                  {names[1], [&] { in_one.replay(); }},
                                  {names[2], [&] { parts.alone(); }}};
  const Plan plan = settings.plan(4 * kIslandBurst);
  Case result{.name = fmt::format("{} parts, {}", kParts, has_backward ? "forward and backward" : "forward only"),
              .measure = "host time per call",
              .unit = "us",
              .baseline = names[1],
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize, kIslandBurst), contenders, plan)};
  const auto time = [&](std::size_t i) { return median(result.series[i].samples); };
  const double each = (time(0) - time(1) - time(2)) / kParts;
  result.requirements = {{.text = fmt::format("a part beyond its own operations: at most {:g} us", limit),
                          .measured = each,
                          .limit = limit,
                          .met = each <= limit}};
  return result;
}

}  // namespace

std::vector<Case> islands(const Settings& settings) {
  const OnPoolStream stream;
  return {reads(settings), cost(settings, /*has_backward=*/false, 12), cost(settings, /*has_backward=*/true, 35)};
}

}  // namespace pianola::bench::cuda
