// Callables whose graphs are rebuilt on parallel branches. What becomes of a graph is pianola/graph's; here every option
// reaches it, and results are those of eager whatever it chose.
#include <pianola/callable/testing/graphed_fixture.hpp>

#include <pianola/core/error.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace pianola::branches_test {
namespace {

using testing::expect_same;
using testing::FusedAdam;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal;
using testing::same;
using ::testing::SizeIs;

// Four towers that have nothing to do with each other, and their sum.
struct TowersNet : torch::nn::Module {
  TowersNet() {
    for (int i = 0; i < 4; ++i) {
      towers.push_back(register_module("tower" + std::to_string(i),
                                       torch::nn::Sequential(torch::nn::Linear(12, 24), torch::nn::GELU(),
                                                             torch::nn::Dropout(0.1), torch::nn::Linear(24, 12))));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor sum = towers[0]->forward(x);
    for (std::size_t i = 1; i < towers.size(); ++i) sum = sum + towers[i]->forward(x);
    return sum;
  }
  std::vector<torch::nn::Sequential> towers;
};

class CallableBranchesTest : public testing::GraphedTest {
 protected:
  static constexpr std::uint64_t kSteps = 6;

  static void expect_asked_for(const std::vector<BranchInfo>& branches, std::size_t graphs) {
    ASSERT_THAT(branches, SizeIs(graphs));
    for (const BranchInfo& info : branches) {
      EXPECT_EQ(info.branches, 4);
      EXPECT_GT(info.units, 0U) << info.reason;
      EXPECT_NE(info.rebuilt, !info.reason.empty()) << "either it is rebuilt, or there is a reason";
      if (!on_cuda()) {
        EXPECT_FALSE(info.rebuilt);
      }
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(CallableBranchesTest);

TEST_P(CallableBranchesTest, ForwardAndBackwardEqualEager) {
  for (const GradPolicy policy : {GradPolicy::accumulate, GradPolicy::clone, GradPolicy::alias}) {
    const auto eager = make_net<TowersNet>(), net = make_net<TowersNet>();
    GraphedCallable graphed = make_graphed_callable(net, {batch(1).requires_grad_()}, {.grad = policy, .branches = 4});
    expect_asked_for(graphed.info().branches, 2);
    const auto train = [&](TowersNet& module, const auto& forward) {
      seed(3);
      FusedAdam optimizer(module.parameters());
      testing::NamedTensors made;
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        module.zero_grad();
        const at::Tensor x = batch(step).requires_grad_();
        const at::Tensor loss = square(forward(x));
        loss.backward();
        optimizer.step();
        made.emplace_back("loss", loss.detach().clone());
        made.emplace_back("input gradient", x.grad().clone());
      }
      return made;
    };
    const auto expected = train(*eager, [&](const at::Tensor& x) { return eager->forward(x); });
    expect_same(train(*net, [&](const at::Tensor& x) { return graphed(x); }), expected);
    expect_same_state(*net, *eager);
  }
}

TEST_P(CallableBranchesTest, EveryGraphOfACallableIsTold) {
  const auto net = make_net<TowersNet>();
  const GraphedCallable graphed =
      make_graphed_callable(net, {batch(1)}, {.slots = 2, .evaluation = true, .branches = 4});
  expect_asked_for(graphed.info().branches, 5);
  EXPECT_THAT(graphed.info().report().to_text(), HasSubstr("Parallel branches"));
}

// Callables plan nothing, also where the pool does: what lanes keep from reuse is as much as in another pool.
TEST_P(CallableBranchesTest, ReuseIsDelayedInAPoolThatPlans) {
  const auto held_in = [&](const GraphPool& pool) {
    const auto net = make_net<TowersNet>();
    std::vector<std::size_t> held;
    for (const BranchInfo& info : make_graphed_callable(net, {batch(1)}, {.pool = pool, .branches = 4}).info().branches)
      held.push_back(info.held_bytes);
    return held;
  };
  const GraphPool planning(device(), GraphPool::Options{.plan_memory = true}), other(device());
  const std::vector<std::size_t> held = held_in(other);
  EXPECT_EQ(std::ranges::any_of(held, [](std::size_t bytes) { return bytes != 0; }), on_cuda());
  EXPECT_EQ(held_in(planning), held);
}

TEST_P(CallableBranchesTest, AStepThatCapturesItselfEqualsEager) {
  const auto step_of = [](const std::shared_ptr<TowersNet>& net) {
    auto optimizer = std::make_shared<FusedAdam>(net->parameters());
    return [net, optimizer](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      optimizer->step();
      return loss.detach();
    };
  };
  const auto eager = make_net<TowersNet>(), net = make_net<TowersNet>();
  const auto run = [](const auto& step) {
    seed(3);
    testing::NamedTensors losses;
    for (std::uint64_t i = 0; i < 2 * kSteps; ++i) losses.emplace_back("loss", step(batch(i)).clone());
    return losses;
  };
  const auto expected = run(step_of(eager));
  Graphed graphed = pianola::graphed(step_of(net), logged({.branches = 4}));
  expect_same(run([&](const at::Tensor& x) { return graphed(x); }), expected);
  expect_same_state(*net, *eager);
  EXPECT_GT(replays(graphed), 0U) << (reasons.empty() ? "" : reasons.front());
  expect_asked_for(latest(graphed).branches, 1);
  EXPECT_THAT(graphed.info().report().to_text(), HasSubstr("Parallel branches"));
}

TEST_P(CallableBranchesTest, InferenceThatCapturesItselfEqualsEager) {
  const auto net = make_net<TowersNet>();
  net->eval();
  Graphed graphed = pianola::graphed(net, logged({.branches = 4, .parallel = {.reuse_delay = 4}}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t i = 0; i < 2 * kSteps; ++i) EXPECT_TRUE(same(graphed(batch(i)), net->forward(batch(i))));
  EXPECT_GT(replays(graphed), 0U);
  expect_asked_for(latest(graphed).branches, 1);
}

TEST_P(CallableBranchesTest, NothingIsToldWhereNothingWasAskedFor) {
  const auto net = make_net<TowersNet>();
  const CallableInfo info = make_graphed_callable(net, {batch(1)}, {.branches = 0}).info();
  EXPECT_THAT(info.branches, SizeIs(0));
  EXPECT_THAT(info.report().to_json(), Not(HasSubstr("branches")));
}

TEST_P(CallableBranchesTest, OptionsOutOfRangeAreRefusedAtOnce) {
  const auto net = make_net<TowersNet>();
  const auto callable = [&](const CallableOptions& options) {
    return refusal<UsageError>("branches of a callable",
                               [&] { (void)make_graphed_callable(net, {batch(1)}, options); });
  };
  const auto itself = [&](const GraphedOptions& options) {
    return refusal<UsageError>("branches of graphed", [&] { (void)pianola::graphed(net, options); });
  };
  EXPECT_THAT(callable({.branches = -1}), HasSubstr("branches must be 0 or more, got -1"));
  EXPECT_THAT(itself({.branches = -1}), HasSubstr("branches must be 0 or more, got -1"));
  EXPECT_THAT(itself({.branches = 4, .parallel = {.workspaces = -2}}),
              HasSubstr("parallel.workspaces must be 0 or more, got -2"));
  EXPECT_THAT(itself({.branches = 4, .parallel = {.reuse_delay = -3}}),
              HasSubstr("parallel.reuse_delay must be 0 or more, got -3"));
}

}  // namespace
}  // namespace pianola::branches_test
