// Steps that ask for values of their tensors, whose replays check that these are as they were.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/graph/island.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::checked_reads_test {
namespace {

using testing::MlpNet;

struct DropoutNet : torch::nn::Module {
  DropoutNet() { linear = register_module("linear", torch::nn::Linear(12, 12)); }
  torch::Tensor forward(const torch::Tensor& x) { return torch::dropout(linear->forward(x), 0.5, true); }
  torch::nn::Linear linear{nullptr};
};

struct NormNet : torch::nn::Module {
  NormNet() {
    linear = register_module("linear", torch::nn::Linear(12, 12));
    norm = register_module("norm", torch::nn::BatchNorm1d(12));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm->forward(linear->forward(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

class CheckedReadsTest : public testing::GraphedTest {
 protected:
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  [[nodiscard]] GraphedOptions automatic() { return logged(); }

  // What the step decides by: batches with a large value are rare.
  static at::Tensor batch_of(std::uint64_t i, bool is_large) {
    at::Tensor x = batch(i);
    if (is_large) x.index_put_({0, 0}, 60.0);
    return x;
  }

  // Runs the step graphed and eagerly, on twins, and compares all states.
  template <typename Net, typename MakeStep>
  SignatureInfo expect_equals_eager(const MakeStep& make_step, const std::vector<bool>& large) {
    const auto run = [&](Net& net, const Step& step) {
      seed(8);
      testing::NamedTensors made;
      for (std::size_t i = 0; i < large.size(); ++i) {
        made.emplace_back("result", step(batch_of(i, large[i])).detach().clone());
        for (const auto& tensor : testing::clone_all(state_of_module(net))) made.push_back(tensor);
      }
      made.emplace_back("drawn", randn({4}, 99) + torch::rand({4}, at::TensorOptions(device())));
      return made;
    };
    const auto eager = make_net<Net>(), net = make_net<Net>();
    const auto expected = run(*eager, make_step(eager));
    Graphed graphed = pianola::graphed(make_step(net), automatic());
    testing::expect_same(run(*net, [&](const at::Tensor& x) { return graphed(x); }), expected);
    return latest(graphed);
  }

  // Decides in the forward pass.
  template <typename Net>
  static Step deciding(const std::shared_ptr<Net>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      at::Tensor hidden = net->forward(x);
      if (x.abs().max().gt(50).item<bool>()) hidden = hidden * 0.01;
      const at::Tensor loss = square(hidden);
      loss.backward();
      descend(*net);
      return loss;
    };
  }

  static void descend(const torch::nn::Module& net) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net.parameters()) parameter.sub_(parameter.grad() * 0.001);
  }

  static std::vector<bool> calls(std::size_t count, const std::vector<std::size_t>& large = {}) {
    std::vector<bool> all(count, false);
    for (const std::size_t i : large) all[i] = true;
    return all;
  }
};
PIANOLA_ON_EVERY_DEVICE(CheckedReadsTest);

TEST_P(CheckedReadsTest, AStepThatDecidesAlwaysTheSameReplays) {
  const SignatureInfo info = expect_equals_eager<MlpNet>(&deciding<MlpNet>, calls(10));
  EXPECT_EQ(info.replays, 7U) << info.reason;
  EXPECT_EQ(info.misses, 0U);
}

TEST_P(CheckedReadsTest, ACallThatDecidesOtherwiseRunsEagerly) {
  const SignatureInfo info = expect_equals_eager<MlpNet>(&deciding<MlpNet>, calls(14, {6, 10}));
  EXPECT_EQ(info.replays, 9U) << info.reason;
  EXPECT_EQ(info.misses, 2U);
  EXPECT_EQ(info.recaptures, 0U);
}

TEST_P(CheckedReadsTest, TheReportCountsReplaysThatWereTakenBack) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(deciding<MlpNet>(net), automatic());
  for (std::size_t i = 0; i < 8; ++i) (void)graphed(batch_of(i, i == 6));
  const std::string text = graphed.info().report().to_text();
  EXPECT_NE(text.find(": 1, because a value that they read was another one"), std::string::npos) << text;
}

TEST_P(CheckedReadsTest, TheCallThatIsCapturedMayDecideOtherwise) {
  const SignatureInfo info = expect_equals_eager<MlpNet>(&deciding<MlpNet>, calls(10, {3}));
  EXPECT_EQ(info.replays, 6U) << info.reason;
  EXPECT_EQ(info.misses, 1U);
}

TEST_P(CheckedReadsTest, ADecisionThatChangesForGoodIsCapturedAnew) {
  std::vector<bool> large = calls(24);
  for (std::size_t i = 8; i < large.size(); ++i) large[i] = true;
  const SignatureInfo info = expect_equals_eager<MlpNet>(&deciding<MlpNet>, large);
  EXPECT_EQ(info.misses, 6U) << info.reason;
  EXPECT_EQ(info.recaptures, 1U);
  EXPECT_GE(info.replays, 5U + 7U);
}

TEST_P(CheckedReadsTest, WhatWasDrawnBeforeIsDrawnAgain) {
  EXPECT_EQ(expect_equals_eager<DropoutNet>(&deciding<DropoutNet>, calls(12, {3, 7})).misses, 2U);
}

TEST_P(CheckedReadsTest, StatisticsThatWereCountedBeforeAreTakenBack) {
  const SignatureInfo info = expect_equals_eager<NormNet>(&deciding<NormNet>, calls(12, {3, 7}));
  EXPECT_EQ(info.misses, 2U) << info.reason;
}

// All that the step wrote by then is put back: parameters, and gradients that it adds to.
TEST_P(CheckedReadsTest, ADecisionMayComeAtTheEnd) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      descend(*net);
      if (x.abs().max().gt(50).item<bool>()) net->zero_grad(/*set_to_none=*/false);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, calls(16, {8, 12}));
  EXPECT_EQ(info.misses, 2U) << info.reason;
  EXPECT_GE(info.replays, 8U);
}

TEST_P(CheckedReadsTest, MasksMayChooseRowsAsLongAsTheirNumberIsTheSame) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor mask = torch::arange(x.size(0), x.options()) < x.size(0) - x.abs().max().gt(50).to(at::kLong);
      const at::Tensor hidden = net->forward(x);
      const at::Tensor loss = square(hidden.index({mask})) + hidden.index({mask.nonzero().select(1, 0)}).sum();
      loss.backward();
      descend(*net);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, calls(14, {6, 10}));
  EXPECT_EQ(info.misses, 2U) << info.reason;
  EXPECT_EQ(info.replays, 9U);
}

TEST_P(CheckedReadsTest, InferenceMayAskForValues) {
  const auto net = make_net<MlpNet>(), twin = make_net<MlpNet>();
  const auto make = [](const std::shared_ptr<MlpNet>& of) {
    return [of](const at::Tensor& x) {
      const at::NoGradGuard no_grad;
      const at::Tensor y = of->forward(x);
      return x.abs().max().gt(50).item<bool>() ? y * 0.5 : y;
    };
  };
  Graphed graphed = pianola::graphed(make(net), automatic());
  const auto eager = make(twin);
  for (std::size_t i = 0; i < 12; ++i) {
    const at::Tensor x = batch_of(i, i == 8);
    EXPECT_TRUE(testing::same(graphed(x), eager(x)));
  }
  EXPECT_EQ(latest(graphed).misses, 1U) << latest(graphed).reason;
  EXPECT_EQ(latest(graphed).replays, 8U);
}

TEST_P(CheckedReadsTest, ValuesThatAlwaysChangeLeaveTheStepEager) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x)) * x.abs().max().item<double>();
      loss.backward();
      descend(*net);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, calls(10));
  EXPECT_EQ(info.state, GraphedState::eager);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_NE(reasons[0].find("aten::item returns a value of a tensor to the host"), std::string::npos) << reasons[0];
  EXPECT_NE(reasons[0].find("replays cannot check what is read: what it reads changes from call to call"),
            std::string::npos)
      << reasons[0];
}

TEST_P(CheckedReadsTest, ADecisionThatChangesTooOftenLeavesTheStepEager) {
  std::vector<bool> large(80);
  for (std::size_t i = 8; i < large.size(); ++i) large[i] = i % 16 < 8;
  const SignatureInfo info = expect_equals_eager<MlpNet>(&deciding<MlpNet>, large);
  EXPECT_EQ(info.state, GraphedState::eager);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_NE(reasons[0].find("calls a value that it read was another one than when it was captured"), std::string::npos)
      << reasons[0];
}

// Nobody marked it, so nobody promised that it always gives the same: a call in which it does not is taken back.
TEST_P(CheckedReadsTest, APartThatWasFoundMayGiveOtherTensorsNowAndThen) {
  const auto make = [](const std::shared_ptr<NormNet>& net) {
    return [net, number = graph::next_island_number()](const at::Tensor& x) {
      net->zero_grad();
      const auto run = [](const std::vector<at::Tensor>& inputs, const graph::IslandNumbers&) -> graph::IslandResult {
        const bool is_large = inputs[1].abs().max().gt(50).item<bool>();
        return {.tensors = {is_large ? inputs[0].slice(0, 0, 2) * 0.5 : inputs[0] * 2}};
      };
      const graph::IslandResult part = graph::call_island(
          {.run = run, .name = "part", .number = number, .is_found = true}, {net->forward(x), x}, {});
      const at::Tensor loss = square(part.tensors[0]);
      loss.backward();
      descend(*net);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<NormNet>(make, calls(16, {8, 12}));
  EXPECT_EQ(info.misses, 2U) << info.reason;
  EXPECT_GE(info.replays, 9U);
}

TEST_P(CheckedReadsTest, APartThatWasFoundNeedsAWholeStep) {
  const auto net = make_net<MlpNet>();
  const std::int64_t number = graph::next_island_number();
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        const auto run = [](const std::vector<at::Tensor>& inputs, const graph::IslandNumbers&) -> graph::IslandResult {
          return {.tensors = {inputs[0] * 2}};
        };
        return graph::call_island({.run = run, .name = "part", .number = number, .is_found = true}, {net->forward(x)},
                                  {})
            .tensors[0];
      },
      automatic());
  for (std::size_t i = 0; i < 8; ++i) graphed(batch_of(i, false)).sum().backward();
  EXPECT_EQ(latest(graphed).state, GraphedState::eager);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_NE(reasons[0].find("could not be taken back in a backward pass outside"), std::string::npos) << reasons[0];
}

TEST_P(CheckedReadsTest, WithoutAskingForItAReadLeavesTheStepEager) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(deciding<MlpNet>(net), logged({.islands = IslandPolicy::marked}));
  for (std::size_t i = 0; i < 8; ++i) (void)graphed(batch_of(i, false));
  EXPECT_EQ(latest(graphed).state, GraphedState::eager);
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_EQ(reasons[0].find("replays cannot check"), std::string::npos) << reasons[0];
}

}  // namespace
}  // namespace pianola::checked_reads_test
