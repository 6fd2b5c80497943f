#include <pianola/training/full_iteration.hpp>

#include <pianola/callable/testing/twins.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/training/rng_tracker.hpp>
#include <pianola/training/static_inputs.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::full_iteration_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using testing::FusedAdam;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::TransformerNet;

using Microbatches = std::vector<c10::IValue>;

class FullIterationTest : public testing::CallableTest {
 protected:
  // A network with its optimizer, and what an iteration of it does.
  template <typename Net>
  struct Trainee {
    std::shared_ptr<Net> net = make_net<Net>();
    FusedAdam adam{net->parameters()};

    c10::IValue train(const Microbatches& microbatches) {
      net->zero_grad();
      at::Tensor total = torch::zeros({}, net->parameters()[0].options().requires_grad(false));
      for (const c10::IValue& one : microbatches) {
        const at::Tensor loss = net->forward(one.toTensor()).square().mean() / static_cast<double>(microbatches.size());
        loss.backward();
        total = total + loss.detach();
      }
      adam.step();
      return total;
    }
    c10::IValue validate(const Microbatches& microbatches) {
      const torch::NoGradGuard no_grad;
      net->eval();
      at::Tensor total = net->forward(microbatches.at(0).toTensor()).square().mean();
      net->train();
      return total;
    }
  };

  static Microbatches batch(std::uint64_t seed, std::size_t microbatches, at::IntArrayRef shape) {
    Microbatches result;
    for (std::size_t i = 0; i < microbatches; ++i) result.emplace_back(randn(shape, 100 * seed + i));
    return result;
  }

  using Iteration = std::function<c10::IValue(const Microbatches&)>;
  // The loss and the whole state after each of the iterations.
  static NamedTensors run(const torch::nn::Module& net, const Iteration& iteration,
                          const std::vector<Microbatches>& batches) {
    seed(8);
    NamedTensors results;
    for (const Microbatches& one : batches) {
      results.emplace_back("loss", iteration(one).toTensor().clone());
      for (auto& each : testing::clone_all(state_of_module(net))) results.push_back(std::move(each));
    }
    return results;
  }

  static at::Tensor step_on(Trainee<MlpNet>& trainee, const at::Tensor& x) {
    trainee.net->zero_grad();
    const at::Tensor loss = trainee.net->forward(x).square().sum();
    loss.backward();
    trainee.adam.step();
    return loss.detach();
  }

  // The first iteration of all makes the optimizer's state: it is no witness for a graph, and another is asked for.
  template <typename Net>
  static void begin(Trainee<Net>& one, Trainee<Net>& other, const Microbatches& batch) {
    (void)one.train(batch);
    (void)other.train(batch);
  }

  template <typename Net>
  static FullIterationInfo expect_equals_eager(const std::vector<Microbatches>& batches,
                                               FullIterationOptions options = {}, bool begun = false) {
    Trainee<Net> eager, trained;
    if (begun) begin(eager, trained, batches.front());
    const auto step = [&](const Microbatches& one) { return eager.train(one); };
    const NamedTensors expected = run(*eager.net, step, batches);
    FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, std::move(options));
    expect_same(run(
                    *trained.net, [&](const Microbatches& one) { return iteration(one); }, batches),
                expected);
    return iteration.info();
  }

  static std::vector<Microbatches> batches(int count, std::size_t microbatches, at::IntArrayRef shape) {
    std::vector<Microbatches> result;
    for (int i = 0; i < count; ++i) result.push_back(batch(static_cast<std::uint64_t>(i), microbatches, shape));
    return result;
  }
};
PIANOLA_ON_EVERY_DEVICE(FullIterationTest);

TEST_P(FullIterationTest, EqualsEagerOverAllIterations) {
  const FullIterationInfo info = expect_equals_eager<MlpNet>(batches(10, 4, {8, 12}));
  ASSERT_EQ(info.signatures.size(), 1U);
  EXPECT_EQ(info.signatures[0].stage, Stage::training);
  EXPECT_EQ(info.signatures[0].state, GraphedState::captured);
  EXPECT_EQ(info.signatures[0].eager_calls, 3U);
  EXPECT_EQ(info.signatures[0].replays, 7U);
}

TEST_P(FullIterationTest, EqualsEagerWithDropoutAndAttention) {
  (void)expect_equals_eager<TransformerNet>(batches(8, 3, {2, 6, TransformerNet::kWidth}), {.warmup = 1});
}

TEST_P(FullIterationTest, AnotherNumberOfMicrobatchesOrAnotherShapeHasAGraphOfItsOwn) {
  std::vector<Microbatches> mixed;
  for (std::uint64_t i = 0; i < 6; ++i) {
    mixed.push_back(batch(i, 4, {8, 12}));
    mixed.push_back(batch(i, 2, {8, 12}));
    mixed.push_back(batch(i, 4, {5, 12}));
  }
  const FullIterationInfo info = expect_equals_eager<MlpNet>(mixed, {.warmup = 2}, true);
  ASSERT_EQ(info.signatures.size(), 3U);
  for (const IterationInfo& one : info.signatures) EXPECT_EQ(one.replays, 4U) << one.signature;
  EXPECT_EQ(info.input_bytes, 4U * 512) << "each microbatch of the largest once, in whole units";
}

TEST_P(FullIterationTest, OnlyTheLatestSignaturesKeepTheirGraphs) {
  std::vector<Microbatches> mixed;
  for (const std::int64_t rows : {4, 5, 6, 4, 5, 6}) {
    for (std::uint64_t i = 0; i < 3; ++i) mixed.push_back(batch(i, 1, {rows, 12}));
  }
  const FullIterationInfo info = expect_equals_eager<MlpNet>(mixed, {.warmup = 1, .capacity = 2}, true);
  EXPECT_EQ(info.signatures.size(), 2U);
  EXPECT_EQ(info.evictions, 4U);
}

TEST_P(FullIterationTest, ValidationHasGraphsOfItsOwn) {
  const auto results = [&](Trainee<MlpNet>& trainee, const Iteration& train, const Iteration& validate) {
    seed(8);
    NamedTensors all;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const at::Tensor loss = train(batch(i, 2, {8, 12})).toTensor().clone();
      all.emplace_back("loss", loss);
      all.emplace_back("validation", validate(batch(50 + i, 1, {8, 12})).toTensor().clone());
      for (auto& each : testing::clone_all(state_of_module(*trainee.net))) all.push_back(std::move(each));
    }
    return all;
  };
  Trainee<MlpNet> eager, trained;
  const NamedTensors expected = results(
      eager, [&](const Microbatches& one) { return eager.train(one); },
      [&](const Microbatches& one) { return eager.validate(one); });
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); },
                          [&](const Microbatches& one) { return trained.validate(one); });
  expect_same(results(
                  trained, [&](const Microbatches& one) { return iteration(one); },
                  [&](const Microbatches& one) { return iteration(one, Stage::validation); }),
              expected);
  ASSERT_EQ(iteration.info().signatures.size(), 2U);
  for (const IterationInfo& one : iteration.info().signatures) EXPECT_EQ(one.replays, 5U);
}

TEST_P(FullIterationTest, GradientsForAnOptimizerOutsideSurviveAValidationIterationInBetween) {
  const auto results = [&](Trainee<MlpNet>& trainee, bool graphed) {
    const Iteration backward = [&](const Microbatches& one) {
      trainee.net->zero_grad();
      const at::Tensor loss = trainee.net->forward(one.at(0).toTensor()).square().mean();
      loss.backward();
      return loss.detach();
    };
    const Iteration validate = [&](const Microbatches& one) { return trainee.validate(one); };
    FullIteration iteration(backward, validate, {.warmup = 2});
    NamedTensors all;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const Microbatches training = batch(i, 1, {8, 12}), validation = batch(50 + i, 1, {64, 12});
      all.emplace_back("loss", (graphed ? iteration(training) : backward(training)).toTensor().clone());
      all.emplace_back("validation",
                       (graphed ? iteration(validation, Stage::validation) : validate(validation)).toTensor().clone());
      trainee.adam.step();
      for (auto& each : testing::clone_all(state_of_module(*trainee.net))) all.push_back(std::move(each));
    }
    return all;
  };
  Trainee<MlpNet> eager, trained;
  const NamedTensors expected = results(eager, false);
  expect_same(results(trained, true), expected);
}

// The last batch of an epoch is a smaller one: gradients are those of its graph when the validation is due.
TEST_P(FullIterationTest, AValidationIsCapturedOnceWhicheverTrainingCameBefore) {
  Trainee<MlpNet> eager, trained;
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); },
                          [&](const Microbatches& one) { return trained.validate(one); }, {.warmup = 1});
  seed(8);
  for (std::uint64_t i = 0; i < 12; ++i) {
    const std::int64_t rows = i % 3 == 2 ? 5 : 8;
    const Microbatches training = batch(i, 1, {rows, 12}), validation = batch(50 + i, 1, {8, 12});
    EXPECT_TRUE(same(iteration(training).toTensor(), eager.train(training).toTensor())) << i;
    if (i % 2 == 0) continue;  // so that it follows now one length, now the other
    const at::Tensor expected = eager.validate(validation).toTensor();
    EXPECT_TRUE(same(iteration(validation, Stage::validation).toTensor(), expected)) << i;
  }
  expect_same(state_of_module(*trained.net), state_of_module(*eager.net));
  for (const IterationInfo& one : iteration.info().signatures) EXPECT_EQ(one.recaptures, 0U) << one.signature;
}

// Such a validation depends on them.
TEST_P(FullIterationTest, AValidationThatReturnsAGradientIsCapturedAnewWhereItIsAnotherOne) {
  const auto net = make_net<MlpNet>();
  const at::Tensor weight = net->parameters().at(0);
  const auto loss_and_gradient = [&](const Microbatches& one) {
    const at::NoGradGuard no_grad;
    return c10::IValue(net->forward(one.at(0).toTensor()).sum() + weight.grad().sum());
  };
  FullIteration iteration(loss_and_gradient, {.warmup = 1});
  for (std::uint64_t i = 0; i < 6; ++i) {
    if (i % 2 == 0) net->parameters().at(0).mutable_grad() = randn(weight.sizes(), i);
    const Microbatches data = batch(i, 1, {8, 12});
    EXPECT_TRUE(same(iteration(data).toTensor(), loss_and_gradient(data).toTensor())) << i;
  }
}

// Training and validation by turns at several lengths, in a pool that plans: results and gradients of all are held meanwhile.
TEST_P(FullIterationTest, StagesAndLengthsShareScratchWhereMemoryIsPlanned) {
  for (const bool is_given : {false, true}) {
    std::optional<GraphPool> pool;
    if (is_given) pool.emplace(device(), GraphPool::Options{.plan_memory = true});
    const auto results = [&](Trainee<MlpNet>& trainee, bool graphed) {
      const Iteration backward = [&](const Microbatches& one) {
        trainee.net->zero_grad();
        const at::Tensor loss = trainee.net->forward(one.at(0).toTensor()).square().mean();
        loss.backward();
        return loss.detach();
      };
      const Iteration validate = [&](const Microbatches& one) { return trainee.validate(one); };
      FullIterationOptions options{.warmup = 2, .plan_memory = true};
      if (pool) options.pool = *pool;
      FullIteration iteration(backward, validate, options);
      NamedTensors all;
      for (std::uint64_t i = 0; i < 24; ++i) {
        const std::int64_t rows = 8 + 24 * static_cast<std::int64_t>(i * i % 3);
        const Microbatches training = batch(i, 1, {rows, 12}), validation = batch(50 + i, 1, {64 - rows, 12});
        const at::Tensor loss = (graphed ? iteration(training) : backward(training)).toTensor();
        const at::Tensor held = (graphed ? iteration(validation, Stage::validation) : validate(validation)).toTensor();
        all.emplace_back("loss, after the validation", loss.clone());
        trainee.adam.step();
        all.emplace_back("validation", held.clone());
        for (auto& each : testing::clone_all(state_of_module(*trainee.net))) all.push_back(std::move(each));
      }
      if (graphed) {
        std::size_t replays = 0;
        for (const IterationInfo& one : iteration.info().signatures) replays += one.replays;
        EXPECT_GE(replays, 24U);
      }
      return all;
    };
    Trainee<MlpNet> eager, trained;
    const NamedTensors expected = results(eager, false);
    expect_same(results(trained, true), expected, is_given ? "in a given pool" : "");
  }
}

TEST_P(FullIterationTest, ResultsAreStaticUnlessCopiesAreAskedFor) {
  for (const OutputPolicy output : {OutputPolicy::alias, OutputPolicy::clone}) {
    Trainee<MlpNet> trained;
    (void)trained.train(batch(0, 1, {8, 12}));  // makes the optimizer's state
    FullIteration iteration([&](const Microbatches& one) { return trained.train(one); },
                            {.warmup = 1, .output = output});
    (void)iteration(batch(0, 1, {8, 12}));
    const at::Tensor first = iteration(batch(1, 1, {8, 12})).toTensor();
    const at::Tensor kept = first.clone();
    const at::Tensor second = iteration(batch(2, 1, {8, 12})).toTensor();
    EXPECT_EQ(first.data_ptr() == second.data_ptr(), output == OutputPolicy::alias);
    EXPECT_EQ(static_cast<bool>(same(first, kept)), output == OutputPolicy::clone);
  }
}

TEST_P(FullIterationTest, ResultsKeepTheirStructure) {
  Trainee<MlpNet> trained;
  FullIteration iteration(
      [&](const Microbatches& one) -> c10::IValue {
        c10::Dict<std::string, at::Tensor> metrics;
        const at::Tensor loss = trained.train(one).toTensor();
        metrics.insert("loss", loss);
        metrics.insert("double", loss * 2);
        return metrics;
      },
      {.warmup = 1});
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto metrics = iteration(batch(i, 1, {8, 12})).toGenericDict();
    EXPECT_TRUE(same(metrics.at("double").toTensor(), metrics.at("loss").toTensor() * 2));
  }
}

TEST_P(FullIterationTest, ReadsStaticInputsWhereTheyLie) {
  Trainee<MlpNet> eager, trained;
  StaticInputs inputs(device());
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); });
  const std::vector<Microbatches> data = batches(8, 2, {8, 12});
  const NamedTensors expected = run(
      *eager.net, [&](const Microbatches& one) { return eager.train(one); }, data);
  const auto step = [&](const Microbatches& one) {
    inputs.load(one);
    return iteration(inputs);
  };
  expect_same(run(*trained.net, step, data), expected);
  EXPECT_EQ(iteration.info().signatures.at(0).replays, 5U);
}

TEST_P(FullIterationTest, CapturesAllBucketsWhenTheFirstIsDue) {
  Trainee<MlpNet> eager, trained;
  begin(eager, trained, batch(0, 1, {4, 12}));
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8, 16}, .dim = 0}});
  FullIteration iteration([&](const Microbatches& one) { return step_on(trained, one.at(0).toTensor()); },
                          {.warmup = 2});
  int call = 0;
  for (const std::int64_t rows : {3, 16, 8, 5, 4, 2, 12, 7}) {
    const at::Tensor x = randn({rows, 12}, static_cast<std::uint64_t>(rows));
    inputs.load({x});
    const at::Tensor padded = torch::zeros({inputs.bucket(), 12}, x.options());
    padded.narrow(0, 0, rows).copy_(x);
    const at::Tensor expected = step_on(eager, padded);
    EXPECT_TRUE(same(iteration(inputs).toTensor(), expected)) << "call " << call;
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net), "after call " + std::to_string(call));
    ++call;
  }
  const FullIterationInfo info = iteration.info();
  ASSERT_EQ(info.signatures.size(), 3U);
  std::size_t eager_calls = 0;
  for (const IterationInfo& one : info.signatures) {
    EXPECT_EQ(one.state, GraphedState::captured) << one.signature;
    eager_calls += one.eager_calls;
  }
  EXPECT_LT(eager_calls, 6U) << "two for the bucket that was due first, and none for those that never ran before";
}

// What a call with other shapes took says nothing of it.
TEST_P(FullIterationTest, ABucketThatWouldTakeMoreThanTheLimitIsNotCapturedAhead) {
  Trainee<MlpNet> eager, trained;
  begin(eager, trained, batch(0, 1, {4, 12}));
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 1 << 18}, .dim = 0}});
  std::vector<std::string> reasons;
  FullIteration iteration([&](const Microbatches& one) { return step_on(trained, one.at(0).toTensor()); },
                          {.warmup = 2,
                           .eager_fallback = true,
                           .on_fallback = [&](const std::string& reason) { reasons.push_back(reason); },
                           .memory_limit = std::size_t{8} << 20U});
  for (const std::int64_t rows : {4, 4, 4, 1 << 18, 4}) {
    const at::Tensor x = randn({rows, 12}, static_cast<std::uint64_t>(rows));
    inputs.load({x});
    const at::Tensor expected = step_on(eager, x);
    EXPECT_TRUE(same(iteration(inputs).toTensor(), expected)) << rows;
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net), std::to_string(rows));
  }
  for (const IterationInfo& one : iteration.info().signatures) {
    const bool is_large = one.signature.find("262144") != std::string::npos;
    EXPECT_EQ(one.state, is_large ? GraphedState::eager : GraphedState::captured) << one.signature << one.reason;
  }
  ASSERT_EQ(reasons.size(), 1U);
  EXPECT_THAT(reasons[0], ::testing::HasSubstr("memory_limit is 8.0 MiB"));
}

TEST_P(FullIterationTest, CapturesBucketsWhoseNumbersDependOnTheLength) {
  const auto loss_of = [](Trainee<MlpNet>& trainee, const at::Tensor& places, const at::Tensor& x) {
    trainee.net->zero_grad();
    const at::Tensor y = trainee.net->forward(x + places.narrow(0, 0, x.size(0)));
    const at::Tensor loss = (y * torch::arange(x.size(0), x.options()).unsqueeze(1)).mean();
    loss.backward();
    trainee.adam.step();
    return loss.detach();
  };
  const at::Tensor places = torch::ones({16, 12}, at::TensorOptions(device())).requires_grad_();
  Trainee<MlpNet> eager, trained;
  begin(eager, trained, batch(0, 1, {4, 12}));
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8, 16}, .dim = 0}});
  FullIteration iteration([&](const Microbatches& one) { return loss_of(trained, places, one.at(0).toTensor()); },
                          {.warmup = 2});
  for (const std::int64_t rows : {8, 8, 8, 16, 4, 16}) {
    const at::Tensor x = randn({rows, 12}, static_cast<std::uint64_t>(rows));
    inputs.load({x});
    EXPECT_TRUE(same(iteration(inputs).toTensor(), loss_of(eager, places, x))) << rows;
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net));
  }
  for (const IterationInfo& one : iteration.info().signatures) EXPECT_EQ(one.state, GraphedState::captured);
}

TEST_P(FullIterationTest, WhatTheCallerDoesToAResultDoesNotComeBack) {
  FullIteration iteration(
      [](const Microbatches& one) -> c10::IValue {
        c10::Dict<std::string, at::Tensor> metrics;
        metrics.insert("sum", one.at(0).toTensor().sum());
        return metrics;
      },
      {.warmup = 1});
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto metrics = iteration(batch(i, 1, {8, 12})).toGenericDict();
    ASSERT_TRUE(metrics.contains("sum")) << i;
    EXPECT_EQ(metrics.erase("sum"), 1U);
  }
}

TEST_P(FullIterationTest, MayBeResetByWhatFollowsAnIteration) {
  Trainee<MlpNet> eager, trained;
  FullIteration* reset = nullptr;
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); },
                          {.warmup = 1, .after_iteration = [&](Stage) { reset->reset(); }});
  reset = &iteration;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const at::Tensor expected = eager.train(batch(i, 1, {8, 12})).toTensor();
    EXPECT_TRUE(same(iteration(batch(i, 1, {8, 12})).toTensor(), expected));
  }
}

TEST_P(FullIterationTest, RefusesToRunInsideAFork) {
  RngTracker tracker(device());
  tracker.add("rank", 1);
  FullIteration iteration([](const Microbatches& one) { return one.at(0).toTensor() * 2; });
  const auto fork = tracker.fork("rank");
  EXPECT_THAT(refusal<UsageError>("an iteration in a fork",
                                  [&] {
                                    (void)iteration(batch(0, 1, {2, 2}));
                                  }),
              AllOf(HasSubstr("while a random stream is forked"), HasSubstr("fork inside the step")));
}

TEST_P(FullIterationTest, InsideACaptureItBecomesAPartOfIt) {
  Trainee<MlpNet> eager, trained;
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8}, .dim = 0}});
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, {.warmup = 1});
  inputs.load({randn({8, 12})});
  EXPECT_TRUE(same(iteration(inputs).toTensor(), eager.train({randn({8, 12})}).toTensor()));
  Graph graph(device());
  at::Tensor loss;
  graph.capture([&] { loss = iteration(inputs).toTensor(); });
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_TRUE(same(loss, eager.train({randn({8, 12})}).toTensor()));
  }
  EXPECT_EQ(iteration.info().signatures.at(0).replays, 0U);
}

TEST_P(FullIterationTest, GradientsThatAreSetFromOutsideAreNoticedAndTooManyAreRefused) {
  const auto net = make_net<MlpNet>();
  FullIteration iteration(
      [&](const Microbatches& one) {
        const at::Tensor loss = net->forward(one.at(0).toTensor()).square().mean();
        loss.backward();  // adds to gradients that are there
        return loss.detach();
      },
      {.warmup = 1});
  const auto disturb = [&] {
    for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
    at::Tensor bias =
        net->parameters().at(1);  // on the memory of another one, so that the step gets no gradients of its own
    bias.mutable_grad() = net->parameters().at(0).grad().flatten().narrow(0, 0, bias.numel()).view(bias.sizes());
    (void)iteration(batch(0, 1, {8, 12}));
  };
  for (int i = 0; i < 10; ++i) disturb();
  EXPECT_THAT(refusal<UsageError>("an iteration that is stale again and again",
                                  [&] {
                                    for (int i = 0; i < 4; ++i) disturb();
                                  }),
              AllOf(HasSubstr("captured 9 times in a row"), HasSubstr("gradients are not as they were")));
}

TEST_P(FullIterationTest, RefusesMoreBucketsThanGraphs) {
  Trainee<MlpNet> trained;
  StaticInputs inputs(device(), {.buckets = {.sizes = {4, 8, 16}, .dim = 0}});
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, {.warmup = 1, .capacity = 2});
  inputs.load({randn({3, 12})});
  (void)iteration(inputs);
  EXPECT_THAT(refusal<UsageError>("more buckets than graphs", [&] { (void)iteration(inputs); }),
              AllOf(HasSubstr("3 buckets, and room for 2 graphs"), HasSubstr("capacity to 3")));
}

TEST_P(FullIterationTest, RunsWhatIsToFollowEachIteration) {
  Trainee<MlpNet> trained;
  std::vector<Stage> seen;
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); },
                          {.warmup = 1, .after_iteration = [&](Stage stage) { seen.push_back(stage); }});
  for (std::uint64_t i = 0; i < 3; ++i) (void)iteration(batch(i, 1, {8, 12}));
  EXPECT_THAT(seen, ElementsAre(Stage::training, Stage::training, Stage::training));
}

TEST_P(FullIterationTest, OneThatWasMovedFromIsRefused) {
  FullIteration iteration([](const Microbatches& one) { return one.at(0); });
  const FullIteration moved(std::move(iteration));
  EXPECT_THAT(refusal<UsageError>("an iteration that was moved from", [&] { (void)iteration(batch(0, 1, {4})); }),
              HasSubstr("a full iteration was called that has been moved from"));  // NOLINT(bugprone-use-after-move)
}

TEST_P(FullIterationTest, ResetCapturesAgain) {
  Trainee<MlpNet> eager, trained;
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, {.warmup = 1});
  for (std::uint64_t i = 0; i < 8; ++i) {
    if (i == 4) iteration.reset(Stage::training);
    const at::Tensor expected = eager.train(batch(i, 2, {8, 12})).toTensor();
    EXPECT_TRUE(same(iteration(batch(i, 2, {8, 12})).toTensor(), expected));
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net), "after call " + std::to_string(i));
  }
  EXPECT_EQ(iteration.info().signatures.at(0).replays, 3U);
}

TEST_P(FullIterationTest, AParameterThatMovesIsNoticed) {
  Trainee<MlpNet> eager, trained;
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, {.warmup = 1});
  for (std::uint64_t i = 0; i < 8; ++i) {
    if (i == 4) {
      for (Trainee<MlpNet>* one : {&eager, &trained}) {
        one->net->second->bias.set_data(torch::ones({12}, at::TensorOptions(device())));
      }
    }
    const at::Tensor expected = eager.train(batch(i, 2, {8, 12})).toTensor();
    EXPECT_TRUE(same(iteration(batch(i, 2, {8, 12})).toTensor(), expected)) << i;
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net), "after call " + std::to_string(i));
  }
  EXPECT_EQ(iteration.info().signatures.at(0).recaptures, 1U);
}

// What only the host knows and changes.
class HostRateStep {
 public:
  explicit HostRateStep(std::shared_ptr<MlpNet> net) : net_(std::move(net)) {}
  c10::IValue operator()(const Microbatches& microbatches) {
    net_->zero_grad();
    const at::Tensor loss = net_->forward(microbatches.at(0).toTensor()).square().mean();
    loss.backward();
    const torch::NoGradGuard no_grad;
    rate_ *= 0.5;
    for (const at::Tensor& parameter : net_->parameters()) parameter.sub_(parameter.grad() * rate_);
    return loss.detach();
  }

 private:
  std::shared_ptr<MlpNet> net_;
  double rate_ = 0.1;
};

TEST_P(FullIterationTest, AnOptimizerThatCountsOnTheHostIsRefused) {
  const auto net = make_net<MlpNet>();
  FullIteration iteration{HostRateStep(net)};
  for (std::uint64_t i = 0; i < 3; ++i) (void)iteration(batch(i, 1, {8, 12}));
  const NamedTensors before = testing::clone_all(state_of_module(*net));
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string message = refusal<UsageError>("a learning rate of the host", [&] {
      (void)iteration(batch(3, 1, {8, 12}));
    });
    EXPECT_THAT(message,
                AllOf(HasSubstr("aten::mul"), HasSubstr("0.025"), HasSubstr("on the device"), HasSubstr("PG301")));
    expect_same(state_of_module(*net), before, "after the refusal");
  }
}

TEST_P(FullIterationTest, TheOptimizerThatChangesANumberIsNamed) {
  const auto net = make_net<MlpNet>();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
  FullIteration iteration([&](const Microbatches& microbatches) -> c10::IValue {
    optimizer.zero_grad();
    const at::Tensor loss = net->forward(microbatches.at(0).toTensor()).square().mean();
    loss.backward();
    optimizer.step();
    return loss.detach();
  });
  for (std::uint64_t i = 0; i < 3; ++i) (void)iteration(batch(i, 1, {8, 12}));
  const std::string message = refusal<UsageError>("an optimizer that counts on the host", [&] {
    (void)iteration(batch(3, 1, {8, 12}));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("in the next, by the optimizer AdamW as '"), HasSubstr("[PG301]"),
                             HasSubstr("where: operation "), HasSubstr("full_iteration_test.cpp:"),
                             HasSubstr("pianola::step(optimizer)")));
}

// A tensor that each step makes anew: who reads it is named.
TEST_P(FullIterationTest, WhoReadsATensorThatTheStepReplacesIsNamed) {
  const auto net = make_net<MlpNet>();
  at::Tensor average = torch::zeros({}, at::TensorOptions(device()));
  FullIteration iteration([&](const Microbatches& microbatches) -> c10::IValue {
    const at::NoGradGuard no_grad;
    const at::Tensor loss = net->forward(microbatches.at(0).toTensor()).square().mean();
    average = average * 0.9 + loss;
    return loss;
  });
  for (std::uint64_t i = 0; i < 3; ++i) (void)iteration(batch(i, 1, {8, 12}));
  const std::string message = refusal<UsageError>("a tensor that the step replaces", [&] {
    (void)iteration(batch(3, 1, {8, 12}));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("is gone after the call"), HasSubstr("[PG401]"),
                             HasSubstr("of the step, aten::mul"), HasSubstr("full_iteration_test.cpp:")));
}

TEST_P(FullIterationTest, WhatCannotBeCapturedGoesOnEagerlyOnRequest) {
  Trainee<MlpNet> eager, trained;
  HostRateStep expected(eager.net);
  std::vector<std::string> reasons;
  FullIteration iteration(
      HostRateStep(trained.net),
      {.eager_fallback = true, .on_fallback = [&](const std::string& why) { reasons.push_back(why); }});
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(same(iteration(batch(i, 1, {8, 12})).toTensor(), expected(batch(i, 1, {8, 12})).toTensor()));
    expect_same(state_of_module(*trained.net), state_of_module(*eager.net));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("iterations with Float[8, 12]")));
  EXPECT_EQ(iteration.info().signatures.at(0).state, GraphedState::eager);
}

TEST_P(FullIterationTest, AHostReadIsRefusedAndNothingIsComputed) {
  Trainee<MlpNet> trained;
  double seen = 0;
  FullIteration iteration(
      [&](const Microbatches& one) {
        const c10::IValue loss = trained.train(one);
        seen += loss.toTensor().item<double>();
        return loss;
      },
      {.warmup = 2});
  for (std::uint64_t i = 0; i < 2; ++i) (void)iteration(batch(i, 1, {8, 12}));
  const NamedTensors before = testing::clone_all(state_of_module(*trained.net));
  EXPECT_THAT(refusal<UsageError>("an iteration that reads its loss",
                                  [&] {
                                    (void)iteration(batch(2, 1, {8, 12}));
                                  }),
              AllOf(HasSubstr("aten::_local_scalar_dense"), HasSubstr("full_iteration_test.cpp")));
  expect_same(state_of_module(*trained.net), before);
}

TEST_P(FullIterationTest, WhatTheStepThrowsReachesTheCaller) {
  FullIteration iteration([](const Microbatches&) -> c10::IValue { throw std::out_of_range("no such batch"); });
  EXPECT_THROW((void)iteration(batch(0, 1, {2, 2})), std::out_of_range);
}

TEST_P(FullIterationTest, RefusesAStageWithoutAStepAndOptionsOutOfRange) {
  FullIteration iteration([](const Microbatches& one) { return one.at(0); });
  EXPECT_THAT(refusal<UsageError>("a stage without a step",
                                  [&] {
                                    (void)iteration(batch(0, 1, {2, 2}), Stage::validation);
                                  }),
              AllOf(HasSubstr("there is no validation step"), HasSubstr("when you make it")));
  EXPECT_THAT(refusal<UsageError>("no warm-up of an iteration", [&] { FullIteration({}, {.warmup = 0}); }),
              HasSubstr("warmup must be 1 or more, got 0"));
}

TEST_P(FullIterationTest, TakesItsWarmUpFromAConfigurationThatIsRight) {
  EXPECT_EQ(options_from({.cuda_graph_impl = CudaGraphImpl::full_iteration, .cuda_graph_warmup_steps = 5}).warmup, 5);
  EXPECT_THAT(refusal<ConfigError>("a configuration of other graphs", [&] { (void)options_from({}); }),
              AllOf(HasSubstr("not one of full iterations"), HasSubstr("set cuda_graph_impl to full_iteration")));
  EXPECT_THAT(refusal<ConfigError>("a configuration with modules",
                                   [&] {
                                     (void)options_from({.cuda_graph_impl = CudaGraphImpl::full_iteration,
                                                         .cuda_graph_modules = {CudaGraphModule::attn}});
                                   }),
              HasSubstr("CF1"));
}

TEST_P(FullIterationTest, TheReportNamesStagesAndSignatures) {
  Trainee<MlpNet> trained;
  (void)trained.train(batch(0, 2, {8, 12}));  // makes the optimizer's state
  FullIteration iteration([&](const Microbatches& one) { return trained.train(one); }, {.warmup = 1});
  EXPECT_THAT(iteration.info().signatures, IsEmpty());
  for (std::uint64_t i = 0; i < 2; ++i) (void)iteration(batch(i, 2, {8, 12}));
  EXPECT_THAT(iteration.info().report().to_text(),
              AllOf(HasSubstr("training"), HasSubstr("Float[8, 12]"), HasSubstr("captured")));
}

}  // namespace
}  // namespace pianola::full_iteration_test
