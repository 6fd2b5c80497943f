#include <pianola/distributed/gradient_reducer.hpp>

#include <pianola/core/error.hpp>
#include <pianola/distributed/process_group.hpp>
#include <pianola/distributed/testing/two_ranks.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/training/full_iteration.hpp>
#include <pianola/training/sgd.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::distributed::gradient_reducer_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSteps = 15, kWarmup = 3;

at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat);
}

/// Three layers, and a running mean of what comes in.
struct Net {
  explicit Net(std::uint64_t seed) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{8, 16}, {16}, {16, 16}, {16}, {16, 2}})
      parameters.push_back(random(sizes, ++seed).mul_(0.3).requires_grad_());
  }

  at::Tensor loss(const at::Tensor& x) {
    if (at::GradMode::is_enabled()) {
      const at::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.mean(0), 0.1);
    }
    const auto& p = parameters;
    return (x - mean).mm(p[0]).add(p[1]).relu().mm(p[2]).add(p[3]).relu().mm(p[4]).square().mean();
  }

  std::vector<at::Tensor> parameters;
  at::Tensor mean = at::zeros({8});
};

class GradientReducerTest : public TwoRanks {
 protected:
  /// A net that is trained.
  struct Trainee {
    explicit Trainee(GradientReducerOptions options, std::size_t count = 1) : microbatches(count) {
      options.buffers = {net.mean};
      reducer.emplace(net.parameters, group(), std::move(options));
    }

    c10::IValue step(const std::vector<c10::IValue>& batches) {
      optimizer.zero_grad();
      at::Tensor total = at::zeros({});
      for (std::size_t i = 0; i < microbatches; ++i) {
        std::optional<NoSync> no_sync;
        if (i + 1 < microbatches) no_sync.emplace(*reducer);
        reducer->begin();
        const at::Tensor loss = net.loss(batches[i].toTensor());
        loss.backward();
        total = total + loss.detach();
      }
      optimizer.step();
      return total;
    }

    std::size_t microbatches;
    Net net{static_cast<std::uint64_t>(100 * rank())};  // another one on each rank, until rank 0's is copied
    SGD optimizer{net.parameters, {.lr = 0.05, .momentum = 0.9}};
    std::optional<GradientReducer> reducer;
  };

  static std::vector<c10::IValue> batch(int step, std::size_t microbatches = 1) {
    std::vector<c10::IValue> result;
    for (std::size_t i = 0; i < microbatches; ++i)
      result.emplace_back(random({4, 8}, static_cast<std::uint64_t>(1000 * (rank() + 1) + 10 * step) + i));
    return result;
  }

  static bool are_equal(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
    return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                      [](const at::Tensor& one, const at::Tensor& other) { return at::equal(one, other); });
  }
  static at::Tensor of_rank_0(const at::Tensor& tensor) {
    std::vector<at::Tensor> copies{tensor.detach().clone()};
    group()->broadcast(copies)->wait();
    return copies.front();
  }
  static at::Tensor sum_of_ranks(const at::Tensor& tensor) {
    std::vector<at::Tensor> copies{tensor.clone()};
    group()->allreduce(copies)->wait();
    return copies.front();
  }

  static void expect_replays_of_eager(const GradientReducerOptions& options, std::size_t microbatches = 1) {
    Trainee eager(options, microbatches), graphed(options, microbatches);
    const FullIterationOptions by_default{.warmup = kWarmup};
    FullIteration iteration([&](const std::vector<c10::IValue>& batches) { return graphed.step(batches); }, by_default);
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      const auto batches = batch(step, microbatches);
      const at::Tensor expected = eager.step(batches).toTensor();
      ASSERT_TRUE(at::equal(iteration(batches).toTensor(), expected));
      ASSERT_TRUE(are_equal(graphed.net.parameters, eager.net.parameters));
      ASSERT_TRUE(at::equal(graphed.net.mean, eager.net.mean));
      for (std::size_t i = 0; i < eager.net.parameters.size(); ++i)
        ASSERT_TRUE(at::equal(graphed.net.parameters[i].grad(), eager.net.parameters[i].grad()));
    }
    for (const at::Tensor& one : graphed.net.parameters) ASSERT_TRUE(at::equal(one, of_rank_0(one)));
    EXPECT_EQ(iteration.info().signatures.at(0).replays, kSteps - kWarmup) << iteration.info().report().to_text();
  }

  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }
  static std::string refusal(std::vector<at::Tensor> parameters, GradientReducerOptions options = {}) {
    return refusal([&] { GradientReducer(std::move(parameters), group(), std::move(options)); });
  }
  static at::Tensor parameter(at::IntArrayRef sizes) { return at::ones(sizes).requires_grad_(); }
};

TEST_F(GradientReducerTest, CopiesWhatRank0Has) {
  const Trainee one({});
  for (const at::Tensor& parameter : one.net.parameters) EXPECT_TRUE(at::equal(parameter, of_rank_0(parameter)));
  EXPECT_TRUE(at::equal(one.net.parameters[0], Net(0).parameters[0]));
}

TEST_F(GradientReducerTest, AveragesGradientsOverTheRanks) {
  for (const bool views : {false, true}) {
    Trainee one({.bucket_bytes = 256, .first_bucket_bytes = 64, .gradient_as_bucket_view = views});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = batch(step)[0].toTensor();
      one.optimizer.zero_grad();
      one.reducer->begin();
      const at::Tensor loss = one.net.loss(x);
      const auto own = torch::autograd::grad({loss}, one.net.parameters, {}, /*retain_graph=*/true);
      loss.backward();
      for (std::size_t i = 0; i < own.size(); ++i)
        EXPECT_TRUE(at::equal(one.net.parameters[i].grad(), sum_of_ranks(own[i] / 2))) << step << ", " << i;
    }
  }
}

TEST_F(GradientReducerTest, ParametersWithoutGradAreCopiedAndLeftAlone) {
  const at::Tensor frozen = at::ones({2}).mul_(rank() + 1), trained = at::ones({2}).requires_grad_();
  GradientReducer reducer({frozen, trained}, group());
  EXPECT_TRUE(at::equal(frozen, at::ones({2})));
  reducer.begin();
  (frozen * trained * (rank() + 1)).sum().backward();
  EXPECT_TRUE(at::equal(trained.grad(), at::ones({2}).mul_(1.5)));
  EXPECT_FALSE(frozen.grad().defined());
}

TEST_F(GradientReducerTest, AFullIterationReplaysIt) { expect_replays_of_eager({}); }
TEST_F(GradientReducerTest, AFullIterationReplaysManyBuckets) {
  expect_replays_of_eager({.bucket_bytes = 256, .first_bucket_bytes = 64});
}
TEST_F(GradientReducerTest, AFullIterationReplaysBucketViews) {
  expect_replays_of_eager({.gradient_as_bucket_view = true});
}
TEST_F(GradientReducerTest, AFullIterationReplaysAccumulation) {
  expect_replays_of_eager({.bucket_bytes = 256, .first_bucket_bytes = 64}, 3);
  expect_replays_of_eager({.gradient_as_bucket_view = true}, 2);
}

TEST_F(GradientReducerTest, AGraphReplaysItAfterOneWarmUpRun) {
  const GradientReducerOptions options{.bucket_bytes = 256, .first_bucket_bytes = 64};
  Trainee eager(options), graphed(options);
  at::Tensor x = at::zeros({4, 8}), loss;
  Graph graph(at::kCPU);
  graph.capture([&] { loss = graphed.step({x}).toTensor(); }, {.warmup = 1});
  for (int step = 0; step < kSteps; ++step) {
    x.copy_(batch(step)[0].toTensor());
    graph.replay();
    ASSERT_TRUE(at::equal(loss, eager.step(batch(step)).toTensor())) << step;
    ASSERT_TRUE(are_equal(graphed.net.parameters, eager.net.parameters)) << step;
  }
}

TEST_F(GradientReducerTest, NoSyncAddsGradientsOfThisRank) {
  const at::Tensor w = parameter({2});
  GradientReducer reducer({w}, group());
  {
    const NoSync no_sync(reducer);
    (w * (rank() + 1)).sum().backward();  // begin() is for buffers here
    EXPECT_TRUE(at::equal(w.grad(), at::ones({2}).mul_(rank() + 1)));
  }
  reducer.begin();
  (w * (rank() + 1)).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::ones({2}).mul_(3)));  // (2 + 4) / 2
}

TEST_F(GradientReducerTest, MovesAndEndsWithoutTraces) {
  const at::Tensor w = parameter({2});
  {
    GradientReducer first({w}, group());
    GradientReducer second = std::move(first);
    second.begin();
    (w * (rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::ones({2}).mul_(1.5)));
  }
  (w * (rank() + 1)).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::ones({2}).mul_(2.5 + rank())));
}

TEST_F(GradientReducerTest, EvaluationNeedsNoBegin) {
  const at::Tensor w = parameter({2});
  GradientReducer reducer({w}, group());
  {
    const at::NoGradGuard no_grad;
    reducer.begin();
  }
  EXPECT_THAT(refusal([&] { w.sum().backward(); }), HasSubstr("without begin()"));
}

TEST_F(GradientReducerTest, RefusesABackwardPassWithoutBegin) {
  const at::Tensor frozen = at::ones({1}), w = parameter({2});
  GradientReducer reducer({frozen, w}, group());
  const auto text =
      AllOf(HasSubstr("without begin()"), HasSubstr("of this rank alone"), HasSubstr("where: gradient of parameter 1"),
            HasSubstr("fix:   call begin() of the GradientReducer before each forward pass"));
  EXPECT_THAT(refusal([&] { w.sum().backward(); }), text);
  reducer.begin();
  w.sum().backward();
  EXPECT_THAT(refusal([&] { w.sum().backward(); }), text);
}

TEST_F(GradientReducerTest, RefusesToGoOnWhereAParameterGotNoGradient) {
  const at::Tensor used = parameter({2}), unused = parameter({3, 4});
  GradientReducer reducer({used, unused}, group());
  reducer.begin();
  used.sum().backward();
  const auto text = AllOf(HasSubstr("1 of 2 parameters got no gradient"), HasSubstr("1 ([3, 4])"),
                          HasSubstr("fix:   let the loss depend on each parameter"));
  EXPECT_THAT(refusal([&] { reducer.begin(); }), text);
  EXPECT_THAT(refusal([&] { NoSync no_sync(reducer); }), text);
}

TEST_F(GradientReducerTest, RefusesNoSyncBehindBegin) {
  GradientReducer reducer({parameter({2})}, group());
  reducer.begin();
  EXPECT_THAT(refusal([&] { NoSync no_sync(reducer); }),
              AllOf(HasSubstr("NoSync was made after begin()"), HasSubstr("fix:   make it before begin()")));
}

TEST_F(GradientReducerTest, RefusesParametersThatItCannotReduce) {
  const auto where = HasSubstr("where: the constructor of GradientReducer");
  EXPECT_THAT(refusal(std::vector<at::Tensor>()),
              AllOf(HasSubstr("there are no parameters"), where, HasSubstr("model->parameters()")));
  EXPECT_THAT(refusal({at::ones({2}), at::ones({2}, at::kLong)}),
              AllOf(HasSubstr("none of the 2 parameters requires grad"), where));
  EXPECT_THAT(refusal({parameter({2}), at::Tensor()}),
              AllOf(HasSubstr("parameter 1 is undefined"), where, HasSubstr("leave it out")));
  EXPECT_THAT(refusal({parameter({2}) * 2}),
              AllOf(HasSubstr("parameter 0 was made by an operation"), where, HasSubstr("pass leaves")));
  const at::Tensor twice = parameter({2});
  EXPECT_THAT(refusal({twice, twice}),
              AllOf(HasSubstr("parameter 1 is listed twice"), HasSubstr("list each tensor once")));
  EXPECT_THAT(refusal({parameter({2}), at::ones({2}, at::kMeta)}),
              AllOf(HasSubstr("parameter 1 is on meta, the first parameter on cpu"), HasSubstr("one process per GPU")));
  EXPECT_THAT(refusal({parameter({2})}, {.buffers = {at::ones({2}, at::kMeta)}}), HasSubstr("buffer 0 is on meta"));
  EXPECT_THAT(refusal({parameter({2})}, {.bucket_bytes = 0}),
              AllOf(HasSubstr("must be 1 or more, got 0 and 1048576"), HasSubstr("leave them at their defaults")));
  EXPECT_THAT(refusal([] { GradientReducer({parameter({2})}, nullptr); }),
              AllOf(HasSubstr("there is no process group"), HasSubstr("process_group_from_environment()")));
}

TEST_F(GradientReducerTest, RefusesModelsThatDifferOnAllRanks) {
  const auto fix = HasSubstr("fix:   make the same model on each rank");
  EXPECT_THAT(refusal({parameter({2}), parameter({rank() + 2, 3})}),
              AllOf(HasSubstr("parameter 1 is not the same on all ranks: rank 0 has Float[2, 3] with strides [3, 1], "
                              "rank 1 has Float[3, 3]"),
                    fix));
  EXPECT_THAT(refusal({rank() == 0 ? parameter({6}) : parameter({2, 3})}), HasSubstr("rank 0 has Float[6]"));
  EXPECT_THAT(refusal({at::ones({2}, rank() == 0 ? at::kFloat : at::kDouble).requires_grad_()}),
              HasSubstr("rank 1 has Double[2]"));
  std::vector<at::Tensor> more_on_rank_1{parameter({2})};
  more_on_rank_1.resize(static_cast<std::size_t>(rank() + 1), at::ones({1}));
  EXPECT_THAT(refusal(more_on_rank_1),
              AllOf(HasSubstr("not all ranks have the same number of parameters: rank 0 has 1, rank 1 has 2"), fix));
  EXPECT_THAT(refusal({parameter({2})}, {.buffers = {at::ones({rank() + 1})}}),
              HasSubstr("buffer 0 is not the same on all ranks"));
  EXPECT_THAT(refusal({parameter({2})}), IsEmpty());  // and communicates as before
}

}  // namespace
}  // namespace pianola::distributed::gradient_reducer_test
