// Numbers with names: a graph that is given others at each replay.
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace pianola::number_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

class NumberTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    weight = randn({6, 5}, 1);
    gradient = randn({6, 5}, 2);
  }

  // From the same state, with each of these values: what the graph does and what `eager` does.
  void expect_follows(Graph& graph, Number number, const std::vector<double>& values,
                      const std::function<void(at::Tensor&, double)>& eager) {
    at::Tensor twin = weight.clone();
    for (const double value : values) {
      number.set(value);
      graph.replay();
      eager(twin, value);
      EXPECT_TRUE(same(weight, twin)) << value;
    }
  }

  at::Tensor weight, gradient;
};
PIANOLA_ON_EVERY_DEVICE(NumberTest);

TEST_P(NumberTest, ARateIsThatOfEachReplay) {
  Graph graph(device());
  const Number rate = graph.number("rate", 0.1);
  const at::Tensor before = weight.clone();
  graph.capture([&] { weight.sub_(gradient * rate); });
  EXPECT_TRUE(same(weight, before)) << "trials have written";
  expect_follows(graph, rate, {0.1, 0.05, 0.0, 1.0, 2.0, 0.5, -1.0, 1e-30, 3.25, 0.1},
                 [&](at::Tensor& twin, double value) { twin.sub_(gradient * value); });
}

TEST_P(NumberTest, AStepThatIsRecordedTwiceFollowsItsNumbers) {
  Graph graph(device());
  const Number rate = graph.number("rate", 0.1);
  graph.capture([&] { weight.sub_(gradient * rate); }, {.plan_memory = true, .accept_capture_path = true});
  expect_follows(graph, rate, {0.1, 0.05, 3.25}, [&](at::Tensor& twin, double value) { twin.sub_(gradient * value); });
}

TEST_P(NumberTest, WhatIsCalculatedOfNumbersIsCalculatedAnew) {
  at::Tensor average = torch::zeros_like(weight), square = torch::zeros_like(weight);
  const auto adam = [](at::Tensor& w, at::Tensor& m, at::Tensor& v, const at::Tensor& g, const auto& rate,
                       const auto& step) {
    using std::pow, std::sqrt;
    w.mul_(1 - rate * 0.01);
    m.mul_(0.9).add_(g, 0.1);
    v.mul_(0.999).addcmul_(g, g, 0.001);
    const auto second = sqrt(1 - pow(0.999, step));
    w.addcdiv_(m, v.sqrt().div_(second).add_(1e-8), -(rate / (1 - pow(0.9, step))));
  };
  Graph graph(device());
  Number rate = graph.number("rate", 0.1), step = graph.number("step", 1);
  graph.capture([&] { adam(weight, average, square, gradient, rate, step); }, {.branches = 2});
  at::Tensor w = weight.clone(), m = average.clone(), v = square.clone();
  for (int i = 1; i < 20; ++i) {
    const double now = 0.1 * std::cos(0.1 * i);
    rate.set(now);
    step.set(i);
    graph.replay();
    adam(w, m, v, gradient, now, static_cast<double>(i));
    EXPECT_TRUE(same(weight, w) && same(average, m) && same(square, v)) << i;
  }
}

TEST_P(NumberTest, ReachTheBackwardPass) {
  const at::Tensor parameter = weight.clone().requires_grad_();
  const auto loss = [&](const auto& temperature) { return (parameter / temperature).softmax(-1).square().sum(); };
  Graph graph(device());
  Number temperature = graph.number("temperature", 0.7);
  at::Tensor result, result_gradient;
  graph.capture([&] {
    result = loss(temperature);
    result_gradient = torch::autograd::grad({result}, {parameter})[0];
  });
  for (const double value : {0.7, 0.9, 1.3, 0.1, 4.0}) {
    temperature.set(value);
    graph.replay();
    const at::Tensor expected = loss(value);
    EXPECT_TRUE(same(result, expected)) << value;
    EXPECT_TRUE(same(result_gradient, torch::autograd::grad({expected}, {parameter})[0])) << value;
  }
  const at::Tensor before = result.clone();
  temperature.set(1);
  EXPECT_THAT(refusal<UsageError>("a special number in a derivative", [&] { graph.replay(); }),
              AllOf(HasSubstr("temperature"), HasSubstr("is 1, which torch treats in a way of its own"),
                    HasSubstr("nothing was launched")));
  EXPECT_TRUE(same(result, before));
  temperature.set(0.7);
  graph.replay();
  EXPECT_TRUE(same(result, loss(0.7)));
}

TEST_P(NumberTest, GoToArgumentsOfTypeDouble) {
  Graph graph(device());
  Number epsilon = graph.number("epsilon", 1e-3);
  at::Tensor result;
  graph.capture([&] {
    const torch::NoGradGuard no_grad;
    result = at::layer_norm(weight, {5}, {}, {}, epsilon.argument());
  });
  for (const double value : {1e-3, 1e-5, 0.25}) {
    epsilon.set(value);
    graph.replay();
    EXPECT_TRUE(same(result, at::layer_norm(weight, {5}, {}, {}, value))) << value;
  }
}

TEST_P(NumberTest, SeveralThatWereEqualAreToldApart) {
  Graph graph(device());
  Number one = graph.number("one", 0.1), other = graph.number("other", 0.1);
  graph.capture([&] {
    weight.add_(gradient, one);
    weight.mul_(other);
  });
  at::Tensor twin = weight.clone();
  one.set(0.3);
  graph.replay();
  EXPECT_TRUE(same(weight, twin.add_(gradient, 0.3).mul_(0.1)));
  EXPECT_EQ(graph.number("one").value(), 0.3);
  graph.number("other").set(0.7);
  graph.replay();
  EXPECT_TRUE(same(weight, twin.add_(gradient, 0.3).mul_(0.7)));
}

TEST_P(NumberTest, StayWhenTheCaptureIsDropped) {
  Graph graph(device());
  Number rate = graph.number("rate", 0.1);
  graph.capture([&] { weight.add_(gradient, rate); });
  rate.set(0.2);
  graph.reset();
  graph.capture([&] { weight.sub_(gradient, rate); });
  at::Tensor twin = weight.clone();
  graph.replay();
  EXPECT_TRUE(same(weight, twin.sub_(gradient, 0.2)));
  rate.set(0.4);
  graph.replay();
  EXPECT_TRUE(same(weight, twin.sub_(gradient, 0.4)));
}

TEST_P(NumberTest, OneThatTheStepAskedForStaysAsItIs) {
  Graph graph(device());
  Number rate = graph.number("rate", 0.1), scale = graph.number("scale", 0.9);
  graph.capture([&] {
    if (rate.value() > 0.05) weight.add_(gradient, rate);
    weight.mul_(scale);
  });
  EXPECT_THAT(refusal<UsageError>("a number that the step asked for", [&] { rate.set(0.01); }),
              AllOf(HasSubstr("'rate' cannot be another one than 0.1"), HasSubstr("asked for its value"),
                    HasSubstr("pianola::Number")));
  rate.set(0.1);
  scale.set(0.8);
  at::Tensor twin = weight.clone();
  graph.replay();
  EXPECT_TRUE(same(weight, twin.add_(gradient, 0.1).mul_(0.8)));
}

TEST_P(NumberTest, WhatCannotBeFollowedIsRefusedByItsLine) {
  Graph graph(device());
  const Number rate = graph.number("rate", 0.1);
  const at::Tensor before = weight.clone();
  const auto captured = [&](const std::function<void()>& step) { return [&, step] { graph.capture(step); }; };
  double calls = 0.25;
  EXPECT_THAT(refusal<CaptureError>("a number of another kind that changes", captured([&] {
                                      weight.mul_(rate);
                                      weight.add_(gradient, ++calls);
                                    })),
              AllOf(HasSubstr("which is none of the numbers that the step handed to it"), HasSubstr("aten::add_"),
                    HasSubstr("number_test.cpp:"), HasSubstr("[PG301]")));
  EXPECT_THAT(refusal<CaptureError>("a number that goes nowhere", captured([&] {
                                      weight.mul_(0.5);
                                      (void)(rate * 2).argument();
                                    })),
              AllOf(HasSubstr("(rate * 2)"), HasSubstr("no operation was given it")));
  EXPECT_THAT(refusal<CaptureError>(
                  "a shape", captured([&] {
                    weight.add_(torch::arange(5 * 0.1, (rate * 0 + 1).argument(), rate, weight.options()).sum());
                  })),
              HasSubstr("[PG301]"));
  EXPECT_TRUE(same(weight, before));
  EXPECT_FALSE(graph.captured());
  graph.capture([&] { weight.mul_(rate); });
  graph.replay();
  EXPECT_TRUE(same(weight, before * 0.1));
}

TEST_P(NumberTest, BadInputIsRefusedInASentence) {
  Graph graph(device());
  Number rate = graph.number("rate", 0.1);
  const auto said = [&](const std::function<void()>& call) { return refusal<UsageError>("bad input", call); };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(said([&] { (void)graph.number("rate", 0.2); }), HasSubstr("has a number 'rate' already"));
  EXPECT_THAT(said([&] { (void)graph.number("", 0.2); }), HasSubstr("needs a name"));
  EXPECT_THAT(said([&] { (void)graph.number("other", kNaN); }), HasSubstr("'other' is nan, which is not finite"));
  EXPECT_THAT(said([&] { (void)graph.number("rat"); }),
              AllOf(HasSubstr("has no number 'rat'"), HasSubstr("did you mean 'rate'?")));
  EXPECT_THAT(said([&] { rate.set(kNaN); }), HasSubstr("'rate' was set to nan, which is not finite"));
  EXPECT_THAT(said([&] { Number(rate * 2).set(1); }), HasSubstr("(rate * 2) is calculated, and cannot be set"));
  const auto step = [&] { weight.mul_(rate); };
  EXPECT_THAT(said([&] { graph.capture(step, {.trace = false}); }), HasSubstr("a graph with numbers needs the trace"));
  EXPECT_THAT(said([&] { graph.capture(step, {.restore = false}); }), HasSubstr("cannot count its warm-up calls"));
  EXPECT_THAT(said([&] { const CaptureScope scope(graph); }), HasSubstr("use Graph::capture"));
  EXPECT_THAT(said([&] { graph.capture(step, {.branches = 4, .plan_memory = true}); }),
              HasSubstr("the memory of a graph with numbers is planned for one lane"));
  const GraphPool planning(device(), GraphPool::Options{.plan_memory = true});
  EXPECT_THAT(said([&] { graph.capture(step, {.pool = planning, .branches = 4}); }),
              HasSubstr("the memory of a graph with numbers is planned for one lane"));
  graph.capture(step);
  EXPECT_THAT(said([&] { (void)graph.number("late", 0.2); }), HasSubstr("'late' was declared after the capture"));
  EXPECT_EQ(rate.value(), 0.1);
}

TEST_P(NumberTest, OutsideOfACaptureItIsANumber) {
  Graph graph(device());
  const Number rate = graph.number("rate", 0.25);
  EXPECT_TRUE(same(weight * rate, weight * 0.25));
  EXPECT_EQ((1 - min(rate * 3, 0.5) / max(rate, 0.1)).value(), -1);
  EXPECT_EQ((exp(log(rate)) + pow(rate, 0.5) + -sqrt(rate)).value(), 0.25);
}

}  // namespace
}  // namespace pianola::number_test
