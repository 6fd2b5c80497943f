#include <pianola/verify/verify.hpp>

#include <pianola/graph/testing/mlp.hpp>
#include <pianola/verify/testing/verify_test.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::verify_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::NamedTensors;
using testing::names_of;
using ::testing::Not;
using testing::same;
using testing::Tensors;
using testing::Training;
using Step = std::function<void()>;

// Steps that a graph repeats faithfully: verify() must have nothing to say.
class EqualTest : public testing::VerifyTest {
 protected:
  static void expect_equal(const VerifyReport& report, int steps) {
    EXPECT_EQ(report.verdict, Verdict::equal) << report.to_text();
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.exit_code(), 0);
    EXPECT_EQ(report.steps, steps);
    EXPECT_FALSE(report.within_tolerance);
    EXPECT_THAT(report.missing_state, IsEmpty()) << report.to_text();
    EXPECT_THAT(report.differences, IsEmpty());
    EXPECT_THAT(report.notes, IsEmpty()) << report.to_text();
    EXPECT_GT(report.eager_time.count(), 0);
    EXPECT_GT(report.graphed_time.count(), 0);
    EXPECT_GE(report.total_time, report.eager_time + report.graphed_time);
  }
};
PIANOLA_ON_EVERY_DEVICE(EqualTest);

TEST_P(EqualTest, ATrainingStepWithDropoutAndAdam) {
  Training training(device(), /*dropout=*/0.3);
  training.step();
  Graph graph(device());
  graph.capture([&] { training.step(); });
  const auto feed = [&](int steps) { training.feed(steps); };
  const auto report = verify_and_expect_untouched<Step>(
      [&] { training.step(); }, [&] { graph.replay(); }, training.state(), {.between = feed},
      {{"x", training.x}, {"target", training.target}, {"learning rate", training.optimizer.learning_rate}});
  expect_equal(report, 5);
  EXPECT_EQ(report.tensors, training.state().size());
}

TEST_P(EqualTest, AStepThatMakesItsGradientsItself) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const at::Tensor average = at::zeros({16, 16}, device());
  const auto run = [&] {
    w.mutable_grad().reset();
    const at::Tensor loss = at::mm(x, w).square().mean();
    loss.backward();
    const at::NoGradGuard no_grad;
    average.mul_(0.9).add_(w.grad());
    w.sub_(average, 0.1);
  };
  Graph graph(device());
  graph.capture(run);
  ASSERT_TRUE(w.grad().defined()) << "the capture leaves a static one";
  const auto report = verify_and_expect_untouched<Step>(
      run, [&] { graph.replay(); }, NamedTensors{{"w", w}, {"average", average}});
  expect_equal(report, 5);
  EXPECT_EQ(report.tensors, 3U) << "w, its gradient, average";
}

TEST_P(EqualTest, AStepThatAddsToAGradient) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  w.mutable_grad() = randn({16, 16}, 3);
  const auto run = [&] { at::mm(x, w).square().mean().backward(); };
  Graph graph(device());
  graph.capture(run);
  expect_equal(verify_and_expect_untouched<Step>(
                   run, [&] { graph.replay(); }, NamedTensors{{"w", w}}),
               5);
}

TEST_P(EqualTest, AGraphThatIsCapturedOnlyNow) {
  Training training(device(), 0.3);
  training.step();
  Graph graph(device());
  const auto late = [&] {
    if (!graph.captured()) graph.capture([&] { training.step(); });
    graph.replay();
  };
  const auto report = verify_and_expect_untouched<Step>([&] { training.step(); }, late, training.state());
  expect_equal(report, 5);
}

// What its capture leaves are gradients of its own: they stay, for an optimizer to find.
TEST_P(EqualTest, AGraphThatIsCapturedOnlyNowKeepsItsGradientsInPlace) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const auto run = [&] {
    w.mutable_grad().reset();
    at::mm(x, w).square().mean().backward();
  };
  Graph graph(device());
  int calls = 0;
  const auto late = [&] {
    if (++calls < 3) return run();
    if (!graph.captured()) graph.capture(run);
    graph.replay();
  };
  const VerifyReport report = verify(Step(run), Step(late), named({{"w", w}}), {.graphed_warmup = 3});
  expect_equal(report, 5);
  EXPECT_EQ(calls, 8);
  ASSERT_TRUE(w.grad().defined());
  EXPECT_TRUE(same(w.grad(), at::zeros_like(w.grad())));
  graph.replay();
  EXPECT_TRUE(same(w.grad(), torch::autograd::grad({at::mm(x, w).square().mean()}, {w})[0])) << "static as before";
}

TEST_P(EqualTest, AFunctionOfSeveralShapes) {
  const at::Tensor w = randn({16, 16}, 2);
  struct Shape {
    at::Tensor x, y;
    std::unique_ptr<Graph> graph;
  };
  std::vector<Shape> shapes;
  std::vector<Tensors> inputs;
  for (const std::int64_t rows : {4, 1, 9, 0}) {
    inputs.push_back({randn({rows, 16}, static_cast<std::uint64_t>(rows) + 1)});
    Shape& shape =
        shapes.emplace_back(Shape{.x = inputs.back()[0].clone(), .y = {}, .graph = std::make_unique<Graph>(device())});
    shape.graph->capture([&] { shape.y = at::mm(shape.x, w).relu(); }, {.allow_empty = true});
  }
  const auto graphed = [&](const Tensors& in) {
    for (Shape& shape : shapes) {
      if (shape.x.size(0) != in[0].size(0)) continue;
      shape.x.copy_(in[0]);
      shape.graph->replay();
      return Tensors{shape.y};
    }
    return Tensors{};
  };
  const VerifyReport report =
      verify_and_expect_untouched<VerifyStep>([&](const Tensors& in) { return Tensors{at::mm(in[0], w).relu()}; },
                                              graphed, {{"w", w}}, {.steps = 9, .inputs = inputs});
  expect_equal(report, 9);
  EXPECT_EQ(report.tensors, 3U) << "output, input, w";
}

TEST_P(EqualTest, AFunctionThatWritesItsInputAndComputesItsGradient) {
  const auto run = [](const Tensors& in) {
    const at::Tensor y = in[0].square();
    y.sum().backward();
    in[1].add_(y.detach());
    return Tensors{y};
  };
  const Tensors samples = {randn({3}).requires_grad_(), randn({3}, 2)};
  const at::Tensor before = samples[1].clone();
  const auto report =
      verify_and_expect_untouched<VerifyStep>(run, run, {}, {.steps = 3, .inputs = {samples}}, {{"input", samples[0]}});
  expect_equal(report, 3);
  EXPECT_EQ(report.tensors, 4U) << "output, two inputs, the gradient of one";
  EXPECT_TRUE(same(samples[1], before));
}

TEST_P(EqualTest, RunningStatisticsAndAGeneratorOfTheUsersOwn) {
  const at::Tensor x = randn({8, 4, 3, 3}), mean = at::zeros({4}, device()), variance = at::ones({4}, device());
  at::Generator mine = generator().clone();
  at::Tensor y;
  const auto run = [&] {
    const at::Tensor mask = at::bernoulli(at::full_like(x, 0.5), mine);
    y = at::batch_norm(x * mask, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
  };
  run();
  Graph graph(device());
  graph.capture(run, {.generators = {mine}});
  const at::Tensor captured = y;
  const at::Tensor before = state_of(mine);
  const auto eager = [&](const Tensors&) {
    run();
    return Tensors{y};
  };
  const auto graphed = [&](const Tensors&) {
    graph.replay();
    return Tensors{captured};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(eager, graphed, {{"mean", mean}, {"variance", variance}},
                                                              {.generators = {mine}});
  expect_equal(report, 5);
  EXPECT_TRUE(same(state_of(mine), before));
}

// Steps in which the sides part.
class DifferenceTest : public testing::VerifyTest {
 protected:
  static std::string file(const SourcePlace& place) { return place.file.substr(place.file.rfind('/') + 1); }
};
PIANOLA_ON_EVERY_DEVICE(DifferenceTest);

TEST_P(DifferenceTest, AFrozenLearningRateIsFoundWithTheTensorTheStepAndTheLine) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  double rate = 0.1;
  int line = 0;
  at::Tensor loss;
  const auto run = [&] {
    loss = at::mm(x, w).square().mean();
    const at::Tensor gradient = torch::autograd::grad({loss}, {w})[0];
    const at::NoGradGuard no_grad;
    line = __LINE__ + 1;
    w.sub_(gradient, rate);
  };
  Graph graph(device());
  graph.capture(run);
  const VerifyOptions options{.between = [&](int steps) { rate = 0.1 / (steps + 1); }, .reset = [&] { rate = 0.1; }};
  const auto report = verify_and_expect_untouched<Step>(run, [&] { graph.replay(); }, {{"w", w}}, options, {{"x", x}});
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_EQ(report.steps, 2);
  ASSERT_THAT(names_of(report.differences), ElementsAre("w"));
  EXPECT_EQ(report.differences[0].step, 2);
  EXPECT_GT(report.differences[0].max_ulps, 0);
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->op, "aten::sub_.Tensor");
  EXPECT_EQ(file(report.origin->place), "verify_test.cpp");
  EXPECT_EQ(report.origin->place.line, line);
  EXPECT_EQ(report.origin->what,
            "its argument 'alpha' is 0.05, and was 0.1 in step 1: a graph keeps what it was captured with");
  EXPECT_EQ(rate, 0.1);
}

// Without a way back on the host, a callback that does what its argument says is enough.
TEST_P(DifferenceTest, AFrozenNumberIsFoundWithoutAReset) {
  const at::Tensor w = at::ones({8}, device());
  double factor = 1.5;
  const auto run = [&] { w.mul_(factor); };
  Graph graph(device());
  graph.capture(run);
  const VerifyOptions options{.between = [&](int steps) { factor = 1.5 + steps; }};
  const auto report = verify_and_expect_untouched<Step>(
      run, [&] { graph.replay(); }, {{"w", w}}, options);
  EXPECT_EQ(report.verdict, Verdict::differs) << report.to_text();
  EXPECT_EQ(report.steps, 2);
  ASSERT_TRUE(report.origin) << report.to_text();
  EXPECT_EQ(report.origin->op, "aten::mul_.Scalar");
  EXPECT_THAT(report.origin->what, HasSubstr("is 2.5, and was 1.5 in step 1"));
}

TEST_P(DifferenceTest, AnOperationChangedOnPurposeIsToldFromAWrongReplay) {
  Training training(device());
  training.step();
  // The graph's loss is another one, and all that follows from it.
  Graph graph(device());
  graph.capture([&] {
    training.output = training.model(training.x);
    training.loss = (training.output - training.target).abs().mean();
    training.gradients = torch::autograd::grad({training.loss}, training.model.parameters);
    training.optimizer.step(training.model.parameters, training.gradients);
  });
  const at::Tensor output = training.output, loss = training.loss;
  const auto eager = [&](const Tensors&) {
    training.step();
    return Tensors{training.output, training.loss};
  };
  const auto graphed = [&](const Tensors&) {
    graph.replay();
    return Tensors{output, loss};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(eager, graphed, training.state());
  EXPECT_EQ(report.verdict, Verdict::differs);
  EXPECT_EQ(report.steps, 1);
  const std::vector<std::string> names = names_of(report.differences);
  ASSERT_THAT(names, Not(IsEmpty())) << report.to_text();
  EXPECT_EQ(names[0], "output 1") << "the loss: before it everything is the same";
  EXPECT_EQ(std::count(names.begin(), names.end(), "output 0"), 0);
  EXPECT_FALSE(report.origin);
  EXPECT_THAT(report.to_text(), HasSubstr("the difference lies in how the graphed side was captured, or is used"));
  EXPECT_THAT(report.to_text(), HasSubstr("'output 1' is first written by operation"));
  EXPECT_THAT(report.to_text(), HasSubstr("aten::mse_loss"));
}

TEST_P(DifferenceTest, TensorsAreListedInTheOrderInWhichEagerComputesThem) {
  const at::Tensor x = randn({4}), a = at::zeros({4}, device()), b = at::zeros({4}, device()),
                   c = at::zeros({4}, device());
  const auto run = [&](double wrong) {
    c.copy_(x);
    a.copy_(c * wrong);
    b.copy_(a + 1);
    const at::Tensor last = b * 2;
    return Tensors{last, b - 3, a + c};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>(
      [&](const Tensors&) { return run(2); }, [&](const Tensors&) { return run(3); }, {{"b", b}, {"a", a}, {"c", c}});
  EXPECT_THAT(names_of(report.differences), ElementsAre("a", "b", "output 0", "output 1", "output 2"));
}

TEST_P(DifferenceTest, AGraphThatForgetsAGradientSaysSo) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const auto report = verify_and_expect_untouched<Step>([&] { at::mm(x, w).sum().backward(); }, [] {}, {{"w", w}});
  ASSERT_THAT(names_of(report.differences), ElementsAre("grad of w"));
  EXPECT_EQ(report.differences[0].role, "gradient");
  EXPECT_EQ(report.differences[0].note, "undefined in graph");
}

// A capture that begins without gradients overwrites them at each replay: eager adds up.
TEST_P(DifferenceTest, AGradientThatEagerAddsUpAndTheGraphOverwritesIsFound) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const auto run = [&] { at::mm(x, w).sum().backward(); };
  Graph graph(device());
  graph.capture(run);
  const auto report = verify_and_expect_untouched<Step>(run, [&] { graph.replay(); }, {{"w", w}});
  EXPECT_EQ(report.verdict, Verdict::differs);
  EXPECT_EQ(report.steps, 2);
  EXPECT_THAT(names_of(report.differences), ElementsAre("grad of w"));
}

TEST_P(DifferenceTest, AGraphThatDrawsMoreRandomNumbersIsFoundByTheGenerator) {
  const at::Tensor x = randn({64});
  const auto run = [&](int draws) {
    at::Tensor y = x;
    for (int i = 0; i < draws; ++i) y = at::bernoulli(at::full_like(x, 0.5));
    return Tensors{x + 1};
  };
  const auto report = verify_and_expect_untouched<VerifyStep>([&](const Tensors&) { return run(1); },
                                                              [&](const Tensors&) { return run(2); }, {});
  EXPECT_THAT(names_of(report.differences), ElementsAre("generator of " + device().str()));
  EXPECT_EQ(report.differences[0].role, "generator");
  EXPECT_THAT(report.differences[0].note, HasSubstr("another count of random numbers"));
}

TEST_P(DifferenceTest, AnotherNumberOfResultsIsSaid) {
  const at::Tensor x = randn({4});
  const auto report = verify_and_expect_untouched<VerifyStep>(
      [&](const Tensors&) {
        return Tensors{x + 1, x + 2};
      },
      [&](const Tensors&) { return Tensors{x + 1}; }, {});
  EXPECT_EQ(report.verdict, Verdict::differs);
  ASSERT_THAT(names_of(report.differences), ElementsAre("output 1"));
  EXPECT_EQ(report.differences[0].note, "undefined in graph");
  EXPECT_THAT(report.to_text(), HasSubstr("eager returns 2 tensors in step 1, the graphed side 1"));
}

TEST_P(DifferenceTest, WithinAToleranceIsEqualAndSaysSo) {
  const at::Tensor x = randn({64}).to(at::kDouble), y = x.to(at::kFloat);
  const auto graphed = [&](const Tensors&) { return Tensors{x * 3 + 1e-9, y * 3}; };
  const auto eager = [&](const Tensors&) { return Tensors{x * 3, y * 3}; };
  const auto run = [&](const VerifyOptions& options) {
    return verify_and_expect_untouched<VerifyStep>(eager, graphed, {}, options);
  };
  const VerifyReport within = run({.tolerance = {{at::kDouble, {.absolute = 1e-8}}}});
  EXPECT_EQ(within.verdict, Verdict::equal);
  EXPECT_TRUE(within.within_tolerance);
  EXPECT_EQ(within.steps, 5);
  EXPECT_THAT(within.to_text(), HasSubstr("equal within the tolerance"));
  EXPECT_EQ(run({.tolerance = {{at::kDouble, {.absolute = 1e-10}}}}).verdict, Verdict::differs);
  EXPECT_EQ(run({.tolerance = {{at::kFloat, {.absolute = 1}}}}).verdict, Verdict::differs) << "of another dtype";
}

TEST_P(DifferenceTest, IsFoundWithoutNarrowingAndWithoutARepeat) {
  const at::Tensor w = at::ones({8}, device());
  int eager_calls = 0;
  const auto report = verify_and_expect_untouched<Step>(
      [&] {
        ++eager_calls;
        w.mul_(2);
      },
      [&] { w.mul_(3); }, {{"w", w}}, {.steps = 3, .repeat_eager = false, .narrow = false});
  EXPECT_EQ(report.verdict, Verdict::differs);
  EXPECT_EQ(report.differences[0].first, "[0]: eager 2, graph 3");
  EXPECT_FALSE(report.origin);
  EXPECT_EQ(eager_calls, 3);
}

TEST_P(DifferenceTest, OfManyStepsTheFirstIsReported) {
  const at::Tensor w = at::ones({8}, device());
  int step = 0;
  const auto report = verify_and_expect_untouched<Step>([&] { w.mul_(2); }, [&] { w.mul_(++step < 4 ? 2 : 3); },
                                                        {{"w", w}}, {.steps = 8});
  EXPECT_EQ(report.steps, 4);
  EXPECT_EQ(report.differences.at(0).step, 4);
  EXPECT_EQ(report.differences.at(0).first, "[0]: eager 16, graph 24");
  EXPECT_EQ(step, 4) << "what comes after it says nothing more";
}

}  // namespace
}  // namespace pianola::verify_test
