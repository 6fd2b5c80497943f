// Functions that do not do the same in each call, or not the same under capture: a graph would repeat one of them for ever.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/graph/open_capture.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pianola::changing_paths_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MlpNet;
using testing::refusal;
using testing::same;

class ChangingPathsTest : public testing::GraphedTest {
 protected:
  using Function = std::function<at::Tensor(const at::Tensor& x, int call)>;

  // Calls the function `calls` times; each result is what it gives eagerly in that call, and it runs once in each.
  SignatureInfo expect_same_as_eager(const Function& function, GraphedOptions options = {}, int calls = 12) {
    int call = 0, runs = 0;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          ++runs;
          return function(x, call);
        },
        logged(std::move(options)));
    for (; call < calls; ++call) {
      const at::Tensor x = batch(static_cast<std::uint64_t>(call));
      EXPECT_TRUE(same(graphed(x), function(x, call))) << call;
    }
    const SignatureInfo info = latest(graphed);
    if (info.state == GraphedState::eager) {
      EXPECT_EQ(runs, calls);
    }
    return info;
  }
};
PIANOLA_ON_EVERY_DEVICE(ChangingPathsTest);

TEST_P(ChangingPathsTest, OtherOperationsInEveryOtherCall) {
  const at::NoGradGuard no_grad;
  const SignatureInfo info =
      expect_same_as_eager([](const at::Tensor& x, int call) { return call % 2 == 0 ? at::relu(x) : at::sigmoid(x); });
  EXPECT_EQ(info.state, GraphedState::eager);
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("the operations in one call differ from those in the next"),
                                         HasSubstr("PG501"), HasSubstr("operation 1 was aten::sigmoid"),
                                         HasSubstr("and aten::relu"), HasSubstr("in the next"))));
}

TEST_P(ChangingPathsTest, BothLinesAreNamed) {
  if (on_cuda()) GTEST_SKIP() << "the same";
  const at::NoGradGuard no_grad;
  (void)expect_same_as_eager([](const at::Tensor& x, int call) {
    if (call % 2 == 0) return x + 1;
    return x * 2;
  });
  const std::string& reason = reasons.at(0);
  const std::size_t first = reason.find("changing_paths_test.cpp:");
  EXPECT_NE(first, std::string::npos) << reason;
  EXPECT_NE(reason.find("changing_paths_test.cpp:", first + 1), std::string::npos) << reason;
}

TEST_P(ChangingPathsTest, OneCallGoesOnWhereAnotherEnds) {
  const at::NoGradGuard no_grad;
  const SignatureInfo info = expect_same_as_eager([](const at::Tensor& x, int call) {
    const at::Tensor y = at::relu(x);
    return call % 2 == 0 ? y : y * 3;
  });
  EXPECT_EQ(info.state, GraphedState::eager);
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("operation 2 was")));
}

TEST_P(ChangingPathsTest, ViewsThatMove) {
  const at::NoGradGuard no_grad;
  const SignatureInfo info =
      expect_same_as_eager([](const at::Tensor& x, int call) { return x.narrow(0, call % 4, 2) * 2; });
  EXPECT_EQ(info.state, GraphedState::eager);
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("PG301"), HasSubstr("in one call and"))));
}

TEST_P(ChangingPathsTest, TensorsOfAnotherShape) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tables;
  for (std::int64_t i = 0; i < 12; ++i) tables.push_back(torch::ones({i % 2 + 1, 12}, device()));
  const SignatureInfo info = expect_same_as_eager(
      [&](const at::Tensor& x, int call) { return x.sum() + at::sin(tables[static_cast<std::size_t>(call)]).sum(); });
  EXPECT_EQ(info.state, GraphedState::eager);
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("aten::sin was given tensors of one shape"), HasSubstr("PG502"))));
}

// A cache, or an optimizer's state: the first call makes what later ones find.
TEST_P(ChangingPathsTest, AFirstCallThatDoesMoreIsWarmUp) {
  const at::NoGradGuard no_grad;
  for (const int warmup : {1, 2, 3}) {
    at::Tensor cache;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          if (!cache.defined()) cache = at::cos(torch::ones({12}, device()));
          return x * cache;
        },
        logged({.warmup = warmup}));
    for (std::uint64_t call = 0; call < 8; ++call) {
      EXPECT_TRUE(same(graphed(batch(call)), batch(call) * torch::cos(torch::ones({12}, device()))));
    }
    EXPECT_EQ(latest(graphed).state, GraphedState::captured) << warmup;
    EXPECT_GE(latest(graphed).replays, 5U);
  }
  EXPECT_THAT(reasons, IsEmpty());
}

TEST_P(ChangingPathsTest, AReadInTheFirstCallAloneIsWarmUp) {
  const at::NoGradGuard no_grad;
  for (const int warmup : {1, 2, 3}) {
    std::optional<float> scale;
    Graphed graphed = pianola::graphed(
        [&](const at::Tensor& x) {
          if (!scale) scale = torch::full({}, 3.0, device()).item<float>();
          return x * *scale;
        },
        logged({.warmup = warmup}));
    for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(graphed(batch(call)), batch(call) * 3));
    EXPECT_EQ(latest(graphed).state, GraphedState::captured) << warmup;
  }
  EXPECT_THAT(reasons, IsEmpty());
}

TEST_P(ChangingPathsTest, WhatAnObservedCallShowsIsNotCaptured) {
  for (const int warmup : {1, 2, 3}) {
    (void)expect_same_as_eager([](const at::Tensor& x, int) { return x * x.sum().item<float>(); }, {.warmup = warmup});
    (void)expect_same_as_eager([](const at::Tensor& x, int) { return x.index({x > 0}).sum() + x; }, {.warmup = warmup});
  }
  for (const std::string& reason : reasons) EXPECT_THAT(reason, ::testing::Not(HasSubstr("run again")));
}

TEST_P(ChangingPathsTest, ATrainingStepThatChangesItsOptimizer) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const auto make = [](const std::shared_ptr<MlpNet>& module) {
    return [module, call = 0](const at::Tensor& x) mutable {
      module->zero_grad();
      const at::Tensor loss = square(module->forward(x));
      loss.backward();
      const at::NoGradGuard no_grad;
      for (const at::Tensor& p : module->parameters()) {
        if (call % 3 == 2) {
          p.sub_(p.grad().sign() * 0.01);
        } else {
          p.sub_(p.grad() * 0.1);
        }
      }
      ++call;
      return loss.detach();
    };
  };
  Graphed graphed = pianola::graphed(make(net), logged());
  auto step = make(eager);
  for (std::uint64_t call = 0; call < 12; ++call) {
    EXPECT_TRUE(same(graphed(batch(call)), step(batch(call))));
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("PG501")));
}

// Whether gradients are there when a step begins is the caller's doing; it decides how they are accumulated.
TEST_P(ChangingPathsTest, GradientsThatAreDroppedNowAndThenAreNoOtherPath) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const auto step_of = [](const std::shared_ptr<MlpNet>& module) {
    return [module](const at::Tensor& x) { square(module->forward(x)).backward(); };
  };
  Graphed graphed = pianola::graphed(step_of(net), logged());
  for (std::uint64_t call = 0; call < 12; ++call) {
    if (call % 3 == 2) {
      for (const auto& one : {eager, net}) one->zero_grad();
    }
    (void)graphed.call({{batch(call)}});
    step_of(eager)(batch(call));
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, IsEmpty());
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
}

at::Tensor asks(const at::Tensor& x) { return graph::capture_is_open() ? x * 2 : x + x; }

TEST_P(ChangingPathsTest, ACaptureThatTakesAnotherPathIsNotReplayed) {
  for (const bool gradients : {false, true}) {
    const at::AutoGradMode mode(gradients);
    Graphed graphed = pianola::graphed(asks, logged());
    for (std::uint64_t call = 0; call < 8; ++call) {
      EXPECT_TRUE(same(graphed(batch(call).requires_grad_(gradients)), batch(call) + batch(call)));
    }
    EXPECT_EQ(latest(graphed).state, GraphedState::eager);
    ASSERT_EQ(reasons.size(), 1U);
    EXPECT_THAT(reasons[0], AllOf(HasSubstr("the operations in the last call differ from those under capture"),
                                  HasSubstr("accept_capture_path"), HasSubstr("the call was run again")));
    reasons.clear();
  }
}

TEST_P(ChangingPathsTest, AStepThatAsksWhetherItIsCapturedIsNotReplayed) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const auto step_of = [](const std::shared_ptr<MlpNet>& module) {
    return [module](const at::Tensor& x) {
      module->zero_grad();
      const at::Tensor loss = square(asks(module->forward(x)));
      loss.backward();
      return loss.detach();
    };
  };
  for (const int warmup : {1, 3}) {
    Graphed graphed = pianola::graphed(step_of(net), logged({.warmup = warmup}));
    for (std::uint64_t call = 0; call < 8; ++call) {
      EXPECT_TRUE(same(graphed(batch(call)), step_of(eager)(batch(call))));
      expect_same_state(*net, *eager, "in call " + std::to_string(call));
    }
    EXPECT_EQ(latest(graphed).state, GraphedState::eager);
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("under capture"), HasSubstr("under capture")));
}

TEST_P(ChangingPathsTest, AnotherPathThatIsAcceptedIsReplayed) {
  const at::NoGradGuard no_grad;
  Graphed graphed = pianola::graphed(asks, logged({.warmup = 2, .accept_capture_path = true}));
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(graphed(batch(call)), batch(call) * 2));
  EXPECT_EQ(latest(graphed).replays, 6U);
  double scale = 1;
  Graphed numbers = pianola::graphed([&](const at::Tensor& x) { return x * (scale += 1); },
                                     logged({.warmup = 2, .accept_capture_path = true}));
  for (std::uint64_t call = 0; call < 8; ++call) {
    const double wanted = scale + 1;
    EXPECT_TRUE(same(numbers(batch(call)), batch(call) * wanted));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("PG301")));
}

// --- Tensors that the function keeps ---

TEST_P(ChangingPathsTest, TensorsThatTheFunctionKeepsAreNotOverwritten) {
  for (const bool gradients : {false, true}) {
    for (const int warmup : {1, 3}) {
      std::vector<at::Tensor> kept;
      Graphed graphed = pianola::graphed(
          [&](const at::Tensor& x) {
            const at::Tensor y = x * 2;
            kept.push_back(y.detach());
            return y + 1;
          },
          logged({.warmup = warmup}));
      for (std::uint64_t call = 0; call < 8; ++call) (void)graphed(batch(call).requires_grad_(gradients));
      for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(kept.at(call), batch(call) * 2)) << call;
      ASSERT_EQ(reasons.size(), 1U);
      EXPECT_THAT(reasons[0], AllOf(HasSubstr("keeps a tensor that it made and does not return"), HasSubstr("PG802")));
      reasons.clear();
    }
  }
}

TEST_P(ChangingPathsTest, AHistoryThatTheCallerKeepsIsNoKeeping) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  std::vector<at::Tensor> results;
  for (std::uint64_t call = 0; call < 4; ++call) results.push_back(graphed(batch(call)));
  EXPECT_THAT(reasons, IsEmpty());
  for (std::uint64_t call = 4; call < 40; ++call) square(graphed(batch(call))).backward();
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
}

// --- Calls in flight ---

TEST_P(ChangingPathsTest, MoreCallsInFlightThanThereIsRoomForAreToldOnce) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1, .max_in_flight = 2}));
  square(graphed(batch(0))).backward();
  for (int round = 0; round < 3; ++round) {
    std::vector<at::Tensor> results;
    for (std::uint64_t call = 0; call < 5; ++call) results.push_back(graphed(batch(call)));
    for (const at::Tensor& result : results) square(result).backward();
  }
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("2 calls with"), HasSubstr("raise max_in_flight"))));
  EXPECT_EQ(latest(graphed).state, GraphedState::captured);
}

// --- Signatures that never come back ---

TEST_P(ChangingPathsTest, SignaturesThatNeverComeBackAreToldOnce) {
  const at::NoGradGuard no_grad;
  Graphed graphed = pianola::graphed([](const at::Tensor& x) { return x * 2; }, logged());
  for (std::int64_t rows = 1; rows < 24; ++rows) EXPECT_TRUE(same(graphed(batch(1, rows)), batch(1, rows) * 2));
  EXPECT_THAT(reasons,
              ElementsAre(AllOf(HasSubstr("nothing is captured"), HasSubstr("the tensors change at every call"),
                                HasSubstr("pad them to a few sizes"))));
}

TEST_P(ChangingPathsTest, NewSignaturesNowAndThenAreNotTold) {
  const at::NoGradGuard no_grad;
  Graphed graphed = pianola::graphed([](const at::Tensor& x) { return x * 2; }, logged());
  for (std::int64_t call = 0; call < 60; ++call) (void)graphed(batch(1, call % 3 == 0 ? call + 9 : 8));
  EXPECT_THAT(reasons, IsEmpty());
}

}  // namespace
}  // namespace pianola::changing_paths_test
