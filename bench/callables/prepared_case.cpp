#include "callables/prepared_case.hpp"

#include "models/mlp.hpp"
#include "models/model.hpp"
#include "models/training.hpp"

#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <memory>

namespace pianola::bench {
namespace {

constexpr int kCheckedSteps = 5;

Model callable_model(const std::string& model, std::int64_t parameters, c10::Device device) {
  if (model == "sum") return parameter_sum(parameters, device);
  if (model == "linear") return linear_chain({.layers = parameters / 2}, device);
  throw UsageError({.what = fmt::format("model must be sum or linear, got '{}'", model)});
}

// Forward and backward with the same input and the same gradient of the output. The gradients are there from the
// beginning, as they are after a first microbatch.
struct ForwardBackward {
  ForwardBackward(const std::string& kind, std::int64_t count, c10::Device device)
      : model(callable_model(kind, count, device)),
        parameters(model.parameters()),
        input(fixed_batch({8, 64}, device)),
        gradient(fixed_batch({8, 64}, device)) {
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

double magnitude(const at::Tensor& tensor) { return tensor.abs().mean().item<double>(); }

// Equal to eager over several runs that accumulate, then with gradients set to none, then accumulating again.
std::vector<double> check(ForwardBackward& graphed, ForwardBackward& eager) {
  using Run = void (ForwardBackward::*)();
  for (const Run run : {&ForwardBackward::run, &ForwardBackward::run_from_none, &ForwardBackward::run}) {
    for (int i = 0; i < 3; ++i) {
      (graphed.*run)();
      (eager.*run)();
      check_equal("the graphed callable", graphed.state(), eager.state());
    }
  }
  eager.run_from_none();
  return {magnitude(eager.output), magnitude(eager.parameters.front().grad())};
}

}  // namespace

PreparedCase prepare_callable(const std::string& model, std::int64_t parameters, c10::Device device) {
  const auto graphed = std::make_shared<ForwardBackward>(model, parameters, device);
  ForwardBackward eager(model, parameters, device);
  graphed->graph();
  return {.contenders = {{"accumulate", [graphed] { graphed->run(); }},
                         {"set to none", [graphed] { graphed->run_from_none(); }}},
          .check = check(*graphed, eager)};
}

PreparedCase prepare_training(const std::string& model, c10::Device device) {
  const TrainingCase made = training_case(model, device);
  const auto training = [&](Graphed graphed) {
    return std::make_shared<Training>(made.model(), made.input, made.target, graphed);
  };
  const auto eager = training(Graphed::nothing);
  const auto whole = training(Graphed::whole);
  const auto per_layer = training(Graphed::per_layer);
  PreparedCase prepared{.contenders = {{"eager", [eager] { eager->step(); }},
                                       {"whole", [whole] { whole->step(); }},
                                       {"per layer", [per_layer] { per_layer->step(); }}},
                        .check = {}};
  for (int step = 0; step < kCheckedSteps; ++step) {
    for (const Contender& contender : prepared.contenders) contender.iteration();
    check_equal("training with one callable", whole->state(), eager->state());
    check_equal("training with a callable per layer", per_layer->state(), eager->state());
    prepared.check.push_back(eager->loss().item<double>());
  }
  return prepared;
}

}  // namespace pianola::bench
