#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace pianola::bench::cuda {
namespace {

// Adds up tensors from outside, one kernel each.
struct Sum {
  explicit Sum(int count) {
    for (int i = 0; i < count; ++i) terms.push_back(at::ones({32}, kDevice));
  }
  void run() {
    for (const at::Tensor& term : terms) total.add_(term);
  }
  std::vector<at::Tensor> terms;
  at::Tensor total = at::ones({32}, kDevice);
};

Case host_time(const Settings& settings, int tensors) {
  Sum sum(tensors);
  std::optional<Graph> graphs[2];
  for (const CheckMode check : {CheckMode::standard, CheckMode::strict}) {
    Graph& graph = graphs[check == CheckMode::strict].emplace(kDevice);
    graph.capture([&] { sum.run(); }, {.warmup = 1, .check = check});
    sum.total.fill_(1);
    graph.replay();
    check_equal("the sum", {sum.total}, {at::full({32}, tensors + 1, at::TensorOptions(kDevice).dtype(at::kFloat))});
  }
  const Contender contenders[] = {{"standard", [&] { graphs[0]->replay(); }}, {"strict", [&] { graphs[1]->replay(); }}};
  Plan plan = settings.plan(std::clamp(100'000 / tensors, 60, 500));
  plan.turns = std::max(1, plan.iterations / 10);
  Case result{.name = fmt::format("{} tensors from outside", tensors),
              .measure = "host time per replay",
              .unit = "us",
              .baseline = "standard",
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize, tensors < 1000 ? 50 : 10), contenders, plan)};
  result.requirements = {within(result, "strict", 2 + 0.01 * tensors, 0)};
  return result;
}

}  // namespace

std::vector<Case> strict_replay(const Settings& settings) {
  const OnPoolStream stream;
  std::vector<Case> cases;
  for (const int tensors : {1, 16, 256, 2048}) cases.push_back(host_time(settings, tensors));
  return cases;
}

}  // namespace pianola::bench::cuda
