#include <pianola/callable/testing/graphed_fixture.hpp>

#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace pianola::graphed_test {
namespace {

using testing::ConvNet;
using testing::expect_same;
using testing::FusedAdam;
using testing::MlpNet;
using testing::same;
using testing::TransformerNet;

static_assert(std::is_nothrow_move_constructible_v<Graphed> && !std::is_copy_constructible_v<Graphed>);

class GraphedCallsTest : public testing::GraphedTest {};
PIANOLA_ON_EVERY_DEVICE(GraphedCallsTest);

TEST_P(GraphedCallsTest, InferenceEqualsEagerOverVariedInputsAndSignatures) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 24; ++call) {
    const at::Tensor x = batch(call, call % 3 == 0 ? 5 : 8);
    EXPECT_TRUE(same(graphed(x), net->forward(x))) << call;
  }
  ASSERT_EQ(graphed.info().signatures.size(), 2U);
  for (const SignatureInfo& one : graphed.info().signatures) {
    EXPECT_EQ(one.kind, GraphedKind::inference);
    EXPECT_EQ(one.state, GraphedState::captured);
    EXPECT_EQ(one.eager_calls, 3U);
  }
  EXPECT_EQ(replays(graphed), 24U - 2 * 3);
  EXPECT_TRUE(reasons.empty());
}

TEST_P(GraphedCallsTest, InferenceModeIsASignatureOfItsOwn) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  for (std::uint64_t call = 0; call < 6; ++call) {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(same(graphed(batch(call)), net->forward(batch(call))));
    const c10::InferenceMode inference;
    EXPECT_TRUE(same(graphed(batch(call)), net->forward(batch(call))));
  }
  EXPECT_EQ(graphed.info().signatures.size(), 2U);
  EXPECT_EQ(replays(graphed), 6U);
  EXPECT_TRUE(reasons.empty());
}

TEST_P(GraphedCallsTest, AProcessMayExitWithAStaticOneThatTrains) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static const auto net = make_net<MlpNet>();
        static Graphed graphed = pianola::graphed(net);
        static at::Tensor result;
        for (std::uint64_t call = 0; call < 6; ++call) (result = graphed(batch(call)).sum()).backward();
        std::exit(replays(graphed) != 0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// The host writes another number where the first one lay: each operation was given its own.
TEST_P(GraphedCallsTest, NumbersInOnePieceOfMemoryAreTheirValues) {
  const auto function = [](const at::Tensor& x) {
    const at::Tensor number = c10::scalar_to_tensor(2.0);
    const at::Tensor scaled = x * number;
    *number.mutable_data_ptr<double>() = 0.5;
    return scaled.clone().index_put_({x > 0}, number) + number;
  };
  Graphed graphed = pianola::graphed(function, logged());
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 8; ++call) {
    EXPECT_TRUE(same(graphed(batch(call)), function(batch(call)))) << call;
  }
  EXPECT_EQ(replays(graphed), 5U) << latest(graphed).reason;
}

TEST_P(GraphedCallsTest, TrainingThroughAutogradEqualsEager) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  Graphed graphed = pianola::graphed(net, logged());
  const auto train = [&](TransformerNet& module, auto&& forward) {
    seed(3);
    FusedAdam adam(module.parameters());
    testing::NamedTensors made;
    for (std::uint64_t step = 0; step < 10; ++step) {
      module.zero_grad(step % 2 == 0);
      const at::Tensor x = randn({2, 8, 32}, step).requires_grad_();
      const at::Tensor y = forward(x);
      square(y).backward();
      adam.step();
      made.emplace_back("output", y.detach());
      made.emplace_back("input gradient", x.grad());
    }
    return made;
  };
  const auto expected = train(*eager, [&](const at::Tensor& x) { return eager->forward(x); });
  const at::Tensor drawn = state_of(generator());
  expect_same(train(*net, [&](const at::Tensor& x) { return graphed(x); }), expected);
  expect_same_state(*net, *eager);
  EXPECT_TRUE(same(state_of(generator()), drawn));
  EXPECT_EQ(latest(graphed).kind, GraphedKind::autograd);
  EXPECT_EQ(latest(graphed).replays, 7U);
}

TEST_P(GraphedCallsTest, TrainingFlagsAreSignatures) {
  const auto eager = make_net<ConvNet>(), net = make_net<ConvNet>();
  Graphed graphed = pianola::graphed(net, logged());
  for (std::uint64_t call = 0; call < 12; ++call) {
    for (const auto& one : {eager, net}) one->train(call % 3 != 0);
    const at::AutoGradMode grad_mode(call % 3 != 0);
    const at::Tensor x = randn({2, 3, 6, 6}, call);
    const at::Tensor y = graphed(x), z = eager->forward(x);
    EXPECT_TRUE(same(y, z)) << call;
    EXPECT_EQ(y.requires_grad(), z.requires_grad());
    if (!z.requires_grad()) continue;
    square(y).backward();
    square(z).backward();
    expect_same_state(*net, *eager, "in call " + std::to_string(call));
  }
  EXPECT_EQ(graphed.info().signatures.size(), 2U);
  EXPECT_EQ(replays(graphed), 12U - 2 * 3);
}

TEST_P(GraphedCallsTest, FlagsOfSubmodulesAreSignaturesToo) {
  const auto eager = make_net<ConvNet>(), net = make_net<ConvNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 12; ++call) {
    for (const auto& one : {eager, net}) one->norm->train(call % 2 == 0);
    const at::Tensor x = randn({2, 3, 6, 6}, call);
    EXPECT_TRUE(same(graphed(x), eager->forward(x))) << call;
  }
  expect_same_state(*net, *eager);
  ASSERT_EQ(graphed.info().signatures.size(), 2U);
  for (const SignatureInfo& one : graphed.info().signatures) EXPECT_EQ(one.recaptures, 0U);
  EXPECT_EQ(replays(graphed), 2 * 5U);
}

TEST_P(GraphedCallsTest, AutocastIsASignatureOfItsOwn) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 6; ++call) {
    const at::Tensor x = batch(call);
    EXPECT_TRUE(same(graphed(x), net->forward(x)));
    const Autocast autocast;
    const at::Tensor y = graphed(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(same(y, net->forward(x)));
  }
  EXPECT_EQ(replays(graphed), 2 * 5U);
}

TEST_P(GraphedCallsTest, TakesNumbersAndNestingAsTheFunctionDoes) {
  const auto function = [](const std::tuple<at::Tensor, std::optional<at::Tensor>>& pair, double scale) {
    const auto& [x, bias] = pair;
    const at::Tensor y = bias ? x * scale + *bias : x * scale;
    return std::tuple(y, std::vector<at::Tensor>{y + 1, y + 2});
  };
  Graphed graphed = pianola::graphed(function, logged({.warmup = 1}));
  const auto values = [](const at::Tensor& x, const c10::IValue& bias, double scale) {
    return std::vector<c10::IValue>{c10::ivalue::Tuple::create({c10::IValue(x), bias}), scale};
  };
  for (std::uint64_t call = 0; call < 4; ++call) {
    for (const double scale : {0.5, 2.0}) {
      for (const c10::IValue& bias : {c10::IValue(), c10::IValue(batch(7))}) {
        const auto arguments = values(batch(call), bias, scale);
        const c10::IValue actual = graphed.forward(arguments), expected = graphed.original()(arguments);
        expect_same(leaves_of(actual, "result"), leaves_of(expected, "result"));
        EXPECT_TRUE(same(actual.toTupleRef().elements()[1].toTensorVector()[1],
                         expected.toTupleRef().elements()[1].toTensorVector()[1]));
      }
    }
  }
  EXPECT_EQ(graphed.info().signatures.size(), 4U);
  EXPECT_EQ(replays(graphed), 4 * 3U);
}

TEST_P(GraphedCallsTest, OutputsAreTheCallersAndStayAsTheyWere) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> kept;
  for (std::uint64_t call = 0; call < 8; ++call) kept.push_back(graphed(batch(call)));
  graphed.reset();
  for (std::uint64_t call = 0; call < 8; ++call) EXPECT_TRUE(same(kept[call], net->forward(batch(call)))) << call;
}

TEST_P(GraphedCallsTest, AliasedOutputsAreTheGraphsOwn) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, {.warmup = 1, .output = OutputPolicy::alias});
  const at::NoGradGuard no_grad;
  (void)graphed(batch(0));
  const at::Tensor first = graphed(batch(1));
  EXPECT_TRUE(same(first, net->forward(batch(1))));
  const at::Tensor second = graphed(batch(2));
  EXPECT_TRUE(same(first, second));
}

TEST_P(GraphedCallsTest, TheSignatureThatWasNotCalledForLongestIsEvicted) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, {.warmup = 1, .capacity = 2});
  const at::NoGradGuard no_grad;
  const auto call = [&](std::int64_t rows) {
    EXPECT_TRUE(same(graphed(batch(1, rows)), net->forward(batch(1, rows))));
  };
  for (const std::int64_t rows : {3, 3, 4, 4, 3, 5, 5}) call(rows);
  EXPECT_EQ(graphed.info().evictions, 1U);
  ASSERT_EQ(graphed.info().signatures.size(), 2U);
  EXPECT_THAT(graphed.info().signatures[1].signature, ::testing::HasSubstr("[3, 12]"));
  for (const std::int64_t rows : {4, 4, 3}) call(rows);  // 4 warms up again, and makes 3 the oldest
}

TEST_P(GraphedCallsTest, CallsInFlightGetGraphsOfTheirOwn) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1, .max_in_flight = 2}));
  const auto siamese = [&](TransformerNet& module, auto&& forward) {
    testing::NamedTensors made;
    seed(5);
    for (std::uint64_t step = 0; step < 4; ++step) {
      module.zero_grad();
      std::vector<at::Tensor> inputs;
      at::Tensor loss;
      for (std::uint64_t branch = 0; branch < 3; ++branch) {
        inputs.push_back(randn({2, 8, 32}, 10 * step + branch).requires_grad_());
        const at::Tensor one = square(forward(inputs.back()));
        loss = branch == 0 ? one : loss * 0.5 + one;
      }
      loss.backward();
      for (const at::Tensor& input : inputs) made.emplace_back("input gradient", input.grad());
      for (const auto& tensor : testing::clone_all(state_of_module(module))) made.push_back(tensor);
    }
    return made;
  };
  const auto expected = siamese(*eager, [&](const at::Tensor& x) { return eager->forward(x); });
  expect_same(siamese(*net, [&](const at::Tensor& x) { return graphed(x); }), expected);
  EXPECT_EQ(latest(graphed).graphs, 2U);
  EXPECT_EQ(latest(graphed).replays, 3U * 2);
  EXPECT_EQ(latest(graphed).eager_calls, 3U + 3);  // no capture before the first backward pass
  EXPECT_THAT(reasons, ::testing::ElementsAre(::testing::HasSubstr("raise max_in_flight")));
}

// Eager adds up what a parameter gets in one backward pass before it adds that to `p.grad`, which is not empty here.
TEST_P(GraphedCallsTest, GradientsOfSeveralCallsAndOfOtherUsesAreAddedUpInEagersOrder) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  Graphed graphed = pianola::graphed(net, logged({.max_in_flight = 3}));
  const auto train = [&](TransformerNet& module, auto&& forward) {
    testing::NamedTensors made;
    seed(5);
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step % 4 == 0) module.zero_grad();
      at::Tensor loss = module.parameters().front().square().mean();
      for (std::uint64_t branch = 0; branch < 3; ++branch) {
        loss = loss + square(forward(randn({2, 8, 32}, 10 * step + branch)));
      }
      loss.backward();
      for (const auto& tensor : testing::clone_all(state_of_module(module))) made.push_back(tensor);
    }
    return made;
  };
  const auto expected = train(*eager, [&](const at::Tensor& x) { return eager->forward(x); });
  expect_same(train(*net, [&](const at::Tensor& x) { return graphed(x); }), expected);
  EXPECT_GE(latest(graphed).replays, 30U) << latest(graphed).reason;
}

// Products are computed by other kernels where gradients lie otherwise.
TEST_P(GraphedCallsTest, GradientsOfResultsLieAsTheyDidInWarmUp) {
  const auto function = [](const at::Tensor& x, const at::Tensor& scale) { return (x * scale).permute({0, 2, 1}); };
  Graphed graphed = pianola::graphed(function, logged());
  const at::Tensor mine = randn({1, 1, 96}, 1).requires_grad_(), theirs = mine.detach().clone().requires_grad_();
  for (std::uint64_t call = 0; call < 12; ++call) {
    const at::Tensor x = randn({5, 33, 96}, 10 + call);
    const auto loss = [&](const at::Tensor& y) { return square(y.contiguous().view({-1})); };
    loss(graphed(x, mine)).backward();
    loss(function(x, theirs)).backward();
    EXPECT_TRUE(same(mine.grad(), theirs.grad())) << call;
  }
  EXPECT_EQ(replays(graphed), 9U) << latest(graphed).reason;
}

TEST_P(GraphedCallsTest, CallsOfSeveralSignaturesMayBeInFlight) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged({.warmup = 1}));
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (const auto& one : {eager, net}) one->zero_grad();
    square(eager->forward(batch(step)) + eager->forward(batch(step + 1, 1))).backward();
    square(graphed(batch(step)) + graphed(batch(step + 1, 1))).backward();
    expect_same_state(*net, *eager, "in step " + std::to_string(step));
  }
  EXPECT_EQ(replays(graphed), 2 * 4U);
}

TEST_P(GraphedCallsTest, InsideACaptureItBecomesPartOfIt) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, {.warmup = 1});
  const at::NoGradGuard no_grad;
  (void)graphed(batch(0));
  (void)graphed(batch(0));
  Graph graph(device());
  const at::Tensor x = batch(0).clone();
  at::Tensor y;
  graph.capture([&] { y = graphed(x); });
  x.copy_(batch(4));
  graph.replay();
  EXPECT_TRUE(same(y, net->forward(batch(4))));
  EXPECT_EQ(replays(graphed), 1U);
}

TEST_P(GraphedCallsTest, OneGraphedFunctionMayCallAnother) {
  const auto net = make_net<MlpNet>();
  Graphed inner = pianola::graphed(net, {.warmup = 1});
  Graphed outer = pianola::graphed([&](const at::Tensor& x) { return inner(x) * 2; }, logged({.warmup = 2}));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 6; ++call) {
    EXPECT_TRUE(same(outer(batch(call)), net->forward(batch(call)) * 2)) << call;
  }
  EXPECT_EQ(replays(outer), 4U);
  EXPECT_TRUE(reasons.empty());
}

TEST_P(GraphedCallsTest, AFunctionMayCallItself) {
  std::unique_ptr<Graphed> graphed;
  const auto factorial = [&](const at::Tensor& x, std::int64_t n) -> at::Tensor {
    if (n == 0) return x + 1;
    return graphed->forward({x, n - 1}).toTensor() * n;
  };
  graphed = std::make_unique<Graphed>(pianola::graphed(factorial, logged()));
  const at::NoGradGuard no_grad;
  for (std::uint64_t call = 0; call < 6; ++call) {
    EXPECT_TRUE(same(graphed->forward({batch(call), std::int64_t{4}}).toTensor(), (batch(call) + 1) * 1 * 2 * 3 * 4));
  }
  EXPECT_TRUE(reasons.empty());
}

TEST_P(GraphedCallsTest, ThreadsMayCallAtTheSameTime) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  std::atomic<int> wrong{0};
  const auto serve = [&](std::uint64_t thread) {
    const at::NoGradGuard no_grad;
    for (std::uint64_t call = 0; call < 40; ++call) {
      const at::Tensor x = batch(100 * thread + call, call % 2 == 0 ? 4 : 8);
      if (!same(graphed(x), net->forward(x))) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(serve, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(replays(graphed), 0U);
  EXPECT_TRUE(reasons.empty());
}

TEST_P(GraphedCallsTest, AfterResetItWarmsUpAgain) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, {.warmup = 2});
  for (std::uint64_t call = 0; call < 3; ++call) square(graphed(batch(call))).backward();
  const at::Tensor in_flight = graphed(batch(3));
  graphed.reset();
  EXPECT_TRUE(graphed.info().signatures.empty());
  square(in_flight).backward();
  (void)graphed(batch(4));
  EXPECT_EQ(latest(graphed).state, GraphedState::warming_up);
  EXPECT_EQ(latest(graphed).warmup_calls, 1);

  const auto eager = make_net<MlpNet>();
  for (std::uint64_t call = 0; call < 4; ++call) square(eager->forward(batch(call))).backward();
  expect_same_state(*net, *eager);
}

TEST_P(GraphedCallsTest, WhatWasMovedFromIsRefused) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, logged());
  const Graphed moved(std::move(graphed));
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_THAT(testing::refusal<UsageError>("a function that was moved from", [&] { (void)graphed(batch(1)); }),
              ::testing::HasSubstr("a graphed function was called that has been moved from"));
  EXPECT_NO_THROW(graphed.reset());
  // NOLINTEND(bugprone-use-after-move)
  GraphedCallable callable = make_graphed_callable(net, {batch(1)});
  const GraphedCallable moved_callable(std::move(callable));
  EXPECT_THAT(testing::refusal<UsageError>("a callable that was moved from", [&] { (void)callable(batch(1)); }),
              ::testing::HasSubstr("a graphed callable was called"));  // NOLINT(bugprone-use-after-move)
}

TEST_P(GraphedCallsTest, TellsWhatItKeeps) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(net, {.warmup = 1});
  const at::NoGradGuard no_grad;
  for (int call = 0; call < 3; ++call) (void)graphed(batch(1));
  EXPECT_EQ(latest(graphed).signature, "Float[8, 12] " + device().str() + ", without gradients");
  const std::string text = graphed.info().report().to_text();
  for (const char* word : {"signatures", "inference", "captured", "Float[8, 12]"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(word));
  }
}

}  // namespace
}  // namespace pianola::graphed_test
