#include <pianola/callable/ambient.hpp>
#include <pianola/callable/testing/twins.hpp>
#include <pianola/trace/testing/autocast.hpp>

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::modes_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using ::testing::Not;
using testing::refusal;
using testing::same;

struct NoisyNet : torch::nn::Module {
  explicit NoisyNet(bool bias = true) {
    in = register_module("in", torch::nn::Linear(torch::nn::LinearOptions(12, 24).bias(bias)));
    norm = register_module("norm", torch::nn::BatchNorm1d(24));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    out = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(24, 5).bias(bias)));
  }
  at::Tensor forward(const at::Tensor& x) { return out(dropout(torch::relu(norm(in(x))))); }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

struct NoisyNetWithoutBias : NoisyNet {
  NoisyNetWithoutBias() : NoisyNet(/*bias=*/false) {}
};

// Settings outside of the inputs: training flags, grad mode, autocast, deterministic algorithms.
class ModesTest : public testing::CallableTest {
 protected:
  using Run = std::function<at::Tensor(const at::Tensor&)>;

  struct Mode {
    bool training;
    bool gradients;
  };
  static constexpr Mode kTraining = {.training = true, .gradients = true};
  static constexpr Mode kEvaluation = {.training = false, .gradients = false};
  static constexpr Mode kFrozen = {.training = false, .gradients = true};
  static constexpr Mode kUpdate = {.training = true, .gradients = false};  // of running statistics

  static at::Tensor batch(std::uint64_t seed) { return randn({8, 12}, seed).requires_grad_(); }

  struct Autocast : testing::AutocastRegion {
    explicit Autocast(bool cache = true) : AutocastRegion(device().type(), cache) {}
  };

  // All that a sequence of calls leaves behind, with weights that change after each backward.
  static NamedTensors calls(NoisyNet& net, const Run& run, const std::vector<Mode>& modes) {
    seed(9);
    NamedTensors made;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      net.train(modes[i].training);
      const at::AutoGradMode grad_mode(modes[i].gradients);
      const at::Tensor x = batch(i + 10);
      const at::Tensor y = run(x);
      made.emplace_back("output", y.detach().clone());
      made.emplace_back("requires grad", torch::full({}, y.requires_grad()));
      if (y.requires_grad()) {
        (y * y).sum().backward();
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : net.parameters()) {
          if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.01);
        }
        made.emplace_back("input gradient", x.grad());
        if (i % 3 == 0) net.zero_grad(i % 2 == 0);
      }
      for (const auto& tensor : clone_all(state_of_module(net))) made.push_back(tensor);
    }
    net.train();
    return made;
  }

  static void expect_calls_equal_eager(const std::vector<Mode>& modes, const CallableOptions& options) {
    const auto eager = make_net<NoisyNet>(), net = make_net<NoisyNet>();
    GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, options);
    expect_same(state_of_module(*net), state_of_module(*make_net<NoisyNet>()), "after capture");
    const auto actual = calls(
        *net, [&](const at::Tensor& x) { return graphed(x); }, modes);
    expect_same(actual, calls(
                            *eager, [&](const at::Tensor& x) { return eager->forward(x); }, modes));
  }
};
PIANOLA_ON_EVERY_DEVICE(ModesTest);

TEST_P(ModesTest, TrainingAndEvaluationGraphsServeCallsInAnyOrder) {
  expect_calls_equal_eager({kTraining, kEvaluation, kEvaluation, kTraining, kTraining, kEvaluation, kTraining},
                           {.evaluation = true});
}

TEST_P(ModesTest, EvaluationBetweenForwardAndBackwardChangesNothing) {
  const auto eager = make_net<NoisyNet>(), net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.evaluation = true});
  const auto train = [](NoisyNet& module, const Run& run) {
    seed(9);
    const at::Tensor x = batch(2), y = run(x);
    const at::Tensor loss = (y * y).sum();
    module.eval();
    NamedTensors made;
    {
      const at::NoGradGuard no_grad;
      made.emplace_back("evaluation", run(batch(3)).clone());
    }
    module.train();
    loss.backward();
    made.emplace_back("input gradient", x.grad());
    for (const auto& tensor : clone_all(state_of_module(module))) made.push_back(tensor);
    return made;
  };
  expect_same(train(*net, [&](const at::Tensor& x) { return graphed(x); }),
              train(*eager, [&](const at::Tensor& x) { return eager->forward(x); }));
}

TEST_P(ModesTest, ThatWereNotCapturedRunEagerlyWhereAskedFor) {
  expect_calls_equal_eager({kTraining, kEvaluation, kFrozen, kTraining, kUpdate, kTraining, kEvaluation},
                           {.on_other_mode = OnOtherMode::eager});
}

TEST_P(ModesTest, ThatWereNotCapturedAreCapturedWhereAskedFor) {
  const std::vector<Mode> all = {kEvaluation, kTraining, kFrozen, kUpdate, kTraining, kFrozen, kEvaluation, kUpdate};
  for (const GradPolicy policy : {GradPolicy::accumulate, GradPolicy::clone, GradPolicy::alias}) {
    expect_calls_equal_eager(all, {.grad = policy, .on_other_mode = OnOtherMode::capture});
  }
}

TEST_P(ModesTest, AreCapturedOnceOnDemandAlsoWhileACallIsInFlight) {
  const auto eager = make_net<NoisyNet>(), net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.on_other_mode = OnOtherMode::capture});
  const auto run = [](NoisyNet& module, const Run& call) {
    seed(9);
    const at::Tensor x = batch(2), y = call(x);
    module.eval();
    const at::Tensor between = call(batch(3));
    (between * between).sum().backward();
    module.train();
    (y * y).sum().backward();
    NamedTensors made = {{"input gradient", x.grad()}};
    for (const auto& tensor : clone_all(state_of_module(module))) made.push_back(tensor);
    return made;
  };
  EXPECT_EQ(graphed.info().graphs, 2U);
  for (int step = 0; step < 3; ++step) {
    const auto actual = run(*net, [&](const at::Tensor& x) { return graphed(x); });
    expect_same(actual, run(*eager, [&](const at::Tensor& x) { return eager->forward(x); }));
    EXPECT_EQ(graphed.info().graphs, 4U);
  }
}

TEST_P(ModesTest, ThatWereNotCapturedAreRefused) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.evaluation = true});
  const NamedTensors before = clone_all(state_of_module(*net));
  net->eval();
  EXPECT_THAT(refusal<GuardError>("a mode that was not captured", [&] { (void)graphed(batch(2)); }),
              AllOf(HasSubstr("the call is in evaluation mode with gradients"),
                    HasSubstr("captured in evaluation mode without gradients and in training mode with gradients"),
                    HasSubstr("OnOtherMode::capture")));
  EXPECT_THAT(
      refusal<UsageError>("static inputs of a mode that was not captured", [&] { (void)graphed.static_inputs(); }),
      HasSubstr("there are no static inputs in evaluation mode with gradients"));
  net->train();
  const at::NoGradGuard no_grad;
  EXPECT_THAT(refusal<GuardError>("training without gradients", [&] { (void)graphed(batch(2)); }),
              HasSubstr("the call is in training mode without gradients"));
  expect_same(state_of_module(*net), before);
}

TEST_P(ModesTest, OfFunctionsHaveNoEvaluation) {
  const auto make = [] {
    (void)make_graphed_callable([](const at::Tensor& x) { return x.sin(); }, {batch(1)}, {.evaluation = true});
  };
  EXPECT_THAT(refusal<UsageError>("evaluation of a function", make), HasSubstr("has no evaluation mode"));
}

TEST_P(ModesTest, OfSubmodulesMustBeThoseOfTheCapture) {
  const auto net = make_net<NoisyNet>();
  net->norm->eval();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.evaluation = true});
  EXPECT_TRUE(net->is_training() && net->dropout->is_training() && !net->norm->is_training());
  seed(3);
  const at::Tensor actual = graphed(batch(2)).clone();
  seed(3);
  EXPECT_TRUE(same(actual, net->forward(batch(2)))) << "with frozen statistics";
  net->train();
  net->dropout->eval();
  EXPECT_THAT(refusal<GuardError>("flags of submodules", [&] { (void)graphed(batch(2)); }),
              AllOf(HasSubstr("training flag of 'norm'"), HasSubstr("training flag of 'dropout'"),
                    Not(HasSubstr("training flag of 'in'"))));
}

TEST_P(ModesTest, ParametersMustRequireGradAsInTheCapture) {
  const auto net = make_net<NoisyNet>();
  net->in->weight.requires_grad_(false);
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  (void)graphed(batch(2)).sum();
  net->in->weight.requires_grad_(true);
  EXPECT_THAT(refusal<GuardError>("a parameter that requires grad now", [&] { (void)graphed(batch(2)); }),
              HasSubstr("parameter 'in.weight': requires grad: captured no, now yes"));
  net->in->weight.requires_grad_(false);
  net->out->bias.requires_grad_(false);
  EXPECT_THAT(refusal<GuardError>("a parameter that requires no grad now", [&] { (void)graphed(batch(2)); }),
              HasSubstr("parameter 'out.bias': requires grad: captured yes, now no"));
}

TEST_P(ModesTest, BuffersMustBeThoseOfTheCapture) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  net->norm->running_mean.set_data(randn({24}));
  EXPECT_THAT(refusal<GuardError>("a buffer with other data", [&] { (void)graphed(batch(2)); }),
              HasSubstr("'norm.running_mean'"));
}

TEST_P(ModesTest, InferenceModeReplaysTheEvaluationGraph) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)}, {.evaluation = true});
  net->eval();
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    const c10::InferenceMode inference;
    EXPECT_TRUE(same(graphed(batch(seed)), net->forward(batch(seed))));
  }
}

TEST_P(ModesTest, InferenceModeMayBeCaptured) {
  const auto net = make_net<NoisyNet>();
  net->eval();
  const c10::InferenceMode inference;
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    EXPECT_TRUE(same(graphed(batch(seed)), net->forward(batch(seed))));
  }
}

TEST_P(ModesTest, AutocastIsCapturedWithAndWithoutItsCache) {
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "with its cache" : "without its cache");
    const auto eager = make_net<NoisyNet>(), net = make_net<NoisyNet>();
    const auto graphed = [&] {
      const Autocast autocast(cache);
      (void)net->forward(batch(9));  // leaves its casts in the cache, which a capture must not take for fixed
      net->norm->reset_running_stats();
      eager->norm->reset_running_stats();
      return std::make_shared<GraphedCallable>(make_graphed_callable(net, {batch(1)}));
    }();
    const auto under_autocast = [&](const Run& run) {
      return [&, run](const at::Tensor& x) {
        const Autocast autocast(cache);
        return run(x);
      };
    };
    const std::vector<Mode> modes(4, kTraining);
    const auto actual = calls(*net, under_autocast([&](const at::Tensor& x) { return (*graphed)(x); }), modes);
    expect_same(actual, calls(*eager, under_autocast([&](const at::Tensor& x) { return eager->forward(x); }), modes));
    EXPECT_EQ(actual[0].second.scalar_type(), at::kBFloat16);
  }
}

TEST_P(ModesTest, AutocastRegionsGoOnAfterACaptureInside) {
  const auto net = make_net<NoisyNet>();
  net->eval();
  const at::Tensor x = batch(2);
  const Autocast autocast;
  const at::Tensor before = net->forward(x);
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  EXPECT_TRUE(same(net->forward(x), before));
  const at::Tensor y = net->forward(x);
  EXPECT_TRUE(same(graphed(x), y));
}

TEST_P(ModesTest, AutocastMustBeAsCaptured) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable plain = make_graphed_callable(net, {batch(1)});
  const auto graphed = [&] {
    const Autocast autocast;
    return std::make_shared<GraphedCallable>(make_graphed_callable(net, {batch(1)}));
  }();
  EXPECT_THAT(refusal<GuardError>("autocast off", [&] { (void)(*graphed)(batch(2)); }),
              HasSubstr("autocast: captured BFloat16, now off"));
  const Autocast autocast;
  EXPECT_THAT(refusal<GuardError>("autocast on", [&] { (void)plain(batch(2)); }),
              HasSubstr("autocast: captured off, now BFloat16"));
  at::autocast::set_autocast_dtype(device().type(), at::kHalf);
  EXPECT_THAT(refusal<GuardError>("another autocast dtype", [&] { (void)(*graphed)(batch(2)); }),
              HasSubstr("autocast: captured BFloat16, now Half"));
}

TEST_P(ModesTest, BackwardInsideAnAutocastRegionIsRefused) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  const at::Tensor loss = graphed(batch(2)).sum();
  const Autocast autocast;
  EXPECT_THAT(refusal<GuardError>("backward() in an autocast region", [&] { loss.backward(); }),
              AllOf(HasSubstr("backward() was called in an autocast region"), HasSubstr("after the autocast region")));
  EXPECT_FALSE(net->in->weight.grad().defined());
}

// Torch advises against it, and its own examples do it.
TEST_P(ModesTest, BackwardInsideTheAutocastRegionRunsWhereThatChangesNothing) {
  const auto eager = make_net<NoisyNetWithoutBias>(), net = make_net<NoisyNetWithoutBias>();
  for (const auto& one : {eager, net}) one->dropout->eval();
  const auto graphed = [&] {
    const Autocast autocast(/*cache=*/false);
    return std::make_shared<GraphedCallable>(make_graphed_callable(net, {batch(1)}));
  }();
  for (std::uint64_t seed = 2; seed < 6; ++seed) {
    const at::Tensor x = batch(seed), y = batch(seed);
    for (const bool inside : {true, false}) {
      std::optional<Autocast> autocast(std::in_place, /*cache=*/false);
      const at::Tensor expected = eager->forward(x).square().sum(), actual = (*graphed)(y).square().sum();
      if (!inside) autocast.reset();
      expected.backward();
      actual.backward();
    }
    EXPECT_TRUE(same(y.grad(), x.grad()));
    expect_same(state_of_module(*net), state_of_module(*eager), "in call " + std::to_string(seed));
  }
}

TEST_P(ModesTest, BackwardInsideTheAutocastRegionIsRefusedWhereThatChangesIt) {
  const at::Tensor weight = randn({12, 5}, 3).requires_grad_();
  const auto in_full_precision = [=](const at::Tensor& x) {
    const callable::AutocastOff no_autocast(device().type());
    return torch::matmul(x, weight);
  };
  const Autocast autocast(/*cache=*/false);
  GraphedCallable graphed = make_graphed_callable(in_full_precision, {batch(1)});
  const at::Tensor loss = graphed(batch(2)).sum();
  EXPECT_THAT(refusal<GuardError>("backward() that autocast would change", [&] { loss.backward(); }),
              HasSubstr("backward() was called in an autocast region"));
}

// The gradient of a bias is a sum, which CUDA's autocast takes in float and the CPU's leaves alone.
TEST_P(ModesTest, BackwardInsideTheAutocastRegionOfABiasRunsWhereAutocastLeavesSumsAlone) {
  const auto eager = make_net<NoisyNet>(), net = make_net<NoisyNet>();
  for (const auto& one : {eager, net}) one->dropout->eval();
  const Autocast autocast(/*cache=*/false);
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  const at::Tensor x = batch(2), y = batch(2);
  const at::Tensor loss = graphed(y).square().sum();
  if (device().is_cuda()) {
    EXPECT_THAT(refusal<GuardError>("backward() of a bias", [&] { loss.backward(); }),
                HasSubstr("backward() was called in an autocast region"));
    return;
  }
  loss.backward();
  eager->forward(x).square().sum().backward();
  EXPECT_TRUE(same(y.grad(), x.grad()));
  expect_same(state_of_module(*net), state_of_module(*eager), "after one call");
}

TEST_P(ModesTest, DeterministicAlgorithmsMustBeAsCaptured) {
  const auto net = make_net<NoisyNet>();
  GraphedCallable graphed = make_graphed_callable(net, {batch(1)});
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_THAT(refusal<GuardError>("other algorithms", [&] { (void)graphed(batch(2)); }),
              HasSubstr("deterministic algorithms: captured on, now off"));
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const at::Tensor loss = graphed(batch(2)).sum();
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_THAT(refusal<GuardError>("other algorithms in backward", [&] { loss.backward(); }),
              HasSubstr("deterministic algorithms: captured on, now off"));
}

}  // namespace
}  // namespace pianola::modes_test
