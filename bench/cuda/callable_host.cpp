#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "models/model.hpp"

#include <pianola/callable/graphed_callable.hpp>

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::bench::cuda {
namespace {

constexpr int kBurst = 20;  // calls between two waits for the device

using MakeModel = std::function<Model(std::int64_t parameters)>;

// Forward and backward with the same input and the same gradient of the output. The gradients are there from the
// beginning, as they are after a first microbatch.
struct ForwardBackward {
  explicit ForwardBackward(Model of)
      : model(std::move(of)),
        parameters(model.parameters()),
        input(fixed_batch({8, 64}, kDevice)),
        gradient(fixed_batch({8, 64}, kDevice)) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::zeros_like(parameter.detach());
  }

  void graph() { callable = std::make_unique<GraphedCallable>(make_graphed_callable(model.whole(), {input})); }

  void run() {
    output = callable ? (*callable)(input) : model(input);
    output.backward(gradient);
  }
  void run_from_none() {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    run();
  }

  [[nodiscard]] std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> state = {output.detach()};
    for (const at::Tensor& parameter : parameters) state.push_back(parameter.grad());
    return state;
  }

  Model model;
  std::vector<at::Tensor> parameters;
  at::Tensor input;
  at::Tensor gradient;
  at::Tensor output;
  std::unique_ptr<GraphedCallable> callable;
};

// Equal to eager over several runs that accumulate, then with gradients set to none, then accumulating again.
void check(ForwardBackward& graphed, ForwardBackward& eager) {
  using Run = void (ForwardBackward::*)();
  for (const Run run : {&ForwardBackward::run, &ForwardBackward::run_from_none, &ForwardBackward::run}) {
    for (int i = 0; i < 3; ++i) {
      (graphed.*run)();
      (eager.*run)();
      check_equal("the graphed callable", graphed.state(), eager.state());
    }
  }
}

std::shared_ptr<ForwardBackward> checked(const MakeModel& model, std::int64_t parameters) {
  auto graphed = std::make_shared<ForwardBackward>(model(parameters));
  ForwardBackward eager(model(parameters));
  graphed->graph();
  check(*graphed, eager);
  return graphed;
}

// The sizes take turns, so that they can be compared.
std::vector<Case> host_times(const Settings& settings, const std::string& title, const MakeModel& model,
                             const std::vector<std::int64_t>& sizes) {
  std::vector<Contender> accumulating, from_none;
  for (const std::int64_t size : sizes) {
    const auto work = checked(model, size);
    const std::string name = fmt::format("{} parameter{}", size, size == 1 ? "" : "s");
    accumulating.push_back({name, [work] { work->run(); }});
    from_none.push_back({name, [work] { work->run_from_none(); }});
  }
  std::vector<Case> cases;
  for (const auto& [way, contenders] :
       {std::pair{"gradients accumulated", &accumulating}, std::pair{"gradients set to none before", &from_none}}) {
    const Plan plan = settings.plan(kBurst);
    cases.push_back({.name = fmt::format("{}, {}", title, way),
                     .measure = "host time of forward and backward",
                     .unit = "us",
                     .baseline = "8 parameters",
                     .iterations = plan.iterations,
                     .series = interleave(host_timer(synchronize, kBurst), *contenders, plan)});
  }
  return cases;
}

}  // namespace

std::vector<Case> callable_host(const Settings& settings) {
  const OnPoolStream stream;
  const auto sum = [](std::int64_t parameters) { return parameter_sum(parameters, kDevice); };
  std::vector<Case> cases = host_times(settings, "sum of parameters", sum, {1, 8, 64, 256, 1024});
  // The bar, for the steady state: next to no cost per parameter.
  cases.front().requirements = {at_most_ratio(cases.front(), "1024 parameters", 1.25)};
  // A layer has two parameters, so that no chain has one.
  const auto chain = [](std::int64_t parameters) { return linear_chain({.layers = parameters / 2}, kDevice); };
  for (Case& one : host_times(settings, "chain of linear layers", chain, {8, 64, 256, 1024})) {
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace pianola::bench::cuda
