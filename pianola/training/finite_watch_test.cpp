#include <pianola/training/finite_watch.hpp>

#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/adam.hpp>
#include <pianola/training/clip_grad.hpp>
#include <pianola/training/grad_scaler.hpp>
#include <pianola/training/testing/plain_sgd.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace pianola::finite_watch_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal;
using testing::same;
using testing::SmallTraining;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

static_assert(std::is_move_constructible_v<FiniteWatch> && !std::is_copy_constructible_v<FiniteWatch>);
static_assert(std::is_base_of_v<Error, NonFiniteError>);

// A training whose loss and gradients are watched.
class Watched : public SmallTraining {
 public:
  explicit Watched(c10::Device device, bool gated = false) : SmallTraining(device), watch(device), gated_(gated) {}

  void step() {
    optimizer.zero_grad();
    backward(forward());
    watch.check("loss", loss);
    watch.check_gradients(optimizer);
    optimizer.step(gated_ ? GradScale{.found_inf = watch.found_inf()} : GradScale{});
    watch.end_step();
  }

  FiniteWatch watch;

 private:
  bool gated_;
};

class FiniteWatchTest : public testing::DeviceTest {
 protected:
  static at::Tensor number(double value, at::ScalarType dtype = at::kFloat) {
    return at::full({}, value, at::TensorOptions(dtype).device(device()));
  }

  // What a step with this check alone finds.
  static std::optional<NonFiniteFinding> found_by(const std::function<void(FiniteWatch&)>& checks) {
    FiniteWatch watch(device());
    checks(watch);
    watch.end_step();
    return watch.find();
  }
  static std::optional<NonFiniteFinding> found_in(const at::Tensor& tensor) {
    return found_by([&](FiniteWatch& watch) { watch.check("it", tensor); });
  }
};
PIANOLA_ON_EVERY_DEVICE(FiniteWatchTest);

TEST_P(FiniteWatchTest, StopsTheStepAfterTheBadOneAndNamesIt) {
  for (const bool captured : {false, true}) {
    Watched training(device());
    Graph graph(device());
    if (captured) graph.capture([&] { training.step(); });
    for (int step = 1; step <= 8; ++step) {
      training.feed(step, step == 7 ? kNan : 1);
      captured ? graph.replay() : training.step();
      synchronize();  // else the host may learn of it later still
      const auto poll = [&] { training.watch.poll(); };
      if (step < 8) {
        poll();
      } else {
        EXPECT_THAT(refusal<NonFiniteError>("NaN in the 7th step", poll),
                    AllOf(HasSubstr("'loss' is NaN in step 7"), HasSubstr("where: not finite in that step: 'loss', "),
                          HasSubstr("'gradient of parameter 0'"), HasSubstr("then call reset()")));
        EXPECT_THROW(poll(), NonFiniteError) << "again";
        EXPECT_THROW(training.watch.wait(), NonFiniteError);
      }
    }
  }
}

TEST_P(FiniteWatchTest, ChangesNoNumberOfTheStep) {
  Watched watched(device());
  SmallTraining plain(device());
  for (int step = 0; step < 4; ++step) {
    watched.feed(step);
    plain.feed(step);
    watched.step();
    plain.optimizer.zero_grad();
    plain.backward(plain.forward());
    plain.optimizer.step();
    expect_same(watched.everything(), plain.everything(), "in step " + std::to_string(step));
    EXPECT_TRUE(same(watched.parameters[0].grad(), plain.parameters[0].grad()));
  }
}

TEST_P(FiniteWatchTest, EqualsEagerInACapturedStep) {
  Watched eager(device(), /*gated=*/true), graphed(device(), /*gated=*/true);
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  EXPECT_TRUE(same(graphed.watch.found_inf(), number(0)));
  for (int step = 0; step < 5; ++step) {
    for (Watched* training : {&eager, &graphed}) training->feed(step, step == 3 ? kInf : 1);
    eager.step();
    graph.replay();
    expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    EXPECT_TRUE(same(graphed.watch.found_inf(), number(step < 3 ? 0 : 1)));
  }
  ASSERT_TRUE(graphed.watch.find().has_value());
  EXPECT_EQ(graphed.watch.find()->step, 4);
  EXPECT_EQ(graphed.watch.find()->step, eager.watch.find()->step);
  EXPECT_EQ(graphed.watch.find()->tensors, eager.watch.find()->tensors);
}

TEST_P(FiniteWatchTest, ABadStepLeavesTheParametersWhereTheOptimizerIsGivenFoundInf) {
  Watched training(device(), /*gated=*/true);
  std::vector<at::Tensor> good;
  for (int step = 1; step <= 9; ++step) {
    training.feed(step, step == 7 ? kNan : 1);
    if (step == 7) good = training.copies();
    training.step();
  }
  EXPECT_TRUE(same(training.parameters[0], good[0])) << "nor does a later one change them";
  EXPECT_TRUE(same(training.parameters[1], good[1]));
  EXPECT_EQ(training.watch.find()->step, 7);
}

TEST_P(FiniteWatchTest, NamesTheFirstBadStepHoweverLateTheHostLooks) {
  Watched training(device());
  for (int step = 1; step <= 20; ++step) {
    training.feed(step, step == 5 ? kInf : 1);
    training.step();
  }
  EXPECT_THAT(refusal<NonFiniteError>("infinity long ago", [&] { training.watch.wait(); }),
              HasSubstr("'loss' is infinite in step 5"));
}

TEST_P(FiniteWatchTest, AGoodTrainingEndsWithoutAWord) {
  Watched training(device());
  for (int step = 0; step < 3; ++step) {
    training.step();
    training.watch.poll();
  }
  training.watch.wait();
  EXPECT_FALSE(training.watch.find().has_value());
}

TEST_P(FiniteWatchTest, APollOfTheBadStepItselfDoesNotThrowYet) {
  Watched training(device());
  training.feed(0, kNan);
  training.step();
  synchronize();
  training.watch.poll();
  EXPECT_THROW(training.watch.poll(), NonFiniteError);
}

TEST_P(FiniteWatchTest, FewerPollsThanStepsAreEnough) {
  Watched training(device());
  for (int step = 1; step <= 12; ++step) {
    training.feed(step, step == 7 ? kNan : 1);
    training.step();
  }
  synchronize();
  training.watch.poll();
  EXPECT_THAT(refusal<NonFiniteError>("a late poll", [&] { training.watch.poll(); }), HasSubstr("in step 7"));
}

TEST_P(FiniteWatchTest, GoesOnCountingAfterAReset) {
  Watched training(device());
  Graph graph(device());
  graph.capture([&] { training.step(); });
  training.feed(0, kNan);
  const std::vector<at::Tensor> good = training.copies();
  graph.replay();
  EXPECT_THROW(training.watch.wait(), NonFiniteError);
  training.watch.reset(100);
  for (std::size_t i = 0; i < good.size(); ++i) training.parameters[i].detach().copy_(good[i]);
  for (int step = 101; step <= 104; ++step) {
    training.feed(step, step == 103 ? kNan : 1);
    graph.replay();
    synchronize();
    if (step < 104) training.watch.poll();
  }
  EXPECT_THAT(refusal<NonFiniteError>("NaN after a reset", [&] { training.watch.poll(); }), HasSubstr("in step 103"));
}

TEST_P(FiniteWatchTest, AWarmUpOnBadNumbersIsNoStep) {
  Watched training(device());
  training.feed(0, kNan);
  Graph graph(device());
  graph.capture([&] { training.step(); });
  for (int step = 1; step <= 3; ++step) {
    training.feed(step);
    graph.replay();
    synchronize();
    training.watch.poll();
  }
  training.watch.wait();
}

TEST_P(FiniteWatchTest, LooksAtTensorsOfAnyShapeAndDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const at::Tensor& good :
         {number(2, dtype), randn({3, 4}).to(dtype), at::zeros({0}, number(0, dtype).options())}) {
      EXPECT_FALSE(found_in(good).has_value()) << dtype;
    }
    for (const double value : {kNan, kInf, -kInf}) {
      EXPECT_TRUE(found_in(number(value, dtype)).has_value()) << dtype << value;
      at::Tensor wide = randn({3, 4}).to(dtype);
      wide[1][2] = value;
      ASSERT_TRUE(found_in(wide.t()).has_value()) << dtype << value;
      EXPECT_EQ(found_in(wide)->is_nan, std::isnan(value)) << dtype << value;
    }
  }
  EXPECT_FALSE(found_in(number(1e300, at::kDouble)).has_value()) << "beyond float32";
  EXPECT_FALSE(found_in(at::full({2}, 3e38, device())).has_value()) << "a norm that does not overflow";
}

TEST_P(FiniteWatchTest, FiniteNumbersAddUpToNoneThatIsNot) {
  FiniteWatch watch(device());
  for (int step = 0; step < 100; ++step) {
    watch.check("large", number(std::numeric_limits<float>::max()));
    watch.end_step();
  }
  watch.wait();
}

TEST_P(FiniteWatchTest, NamesTheFirstOfManyInTheOrderOfTheChecks) {
  const auto finding = found_by([](FiniteWatch& watch) {
    std::vector<NamedTensor> many;
    for (int i = 0; i < 100; ++i) {
      many.push_back(
          {"layer " + std::to_string(i),
           at::ones({i % 3 + 1}, at::TensorOptions(i % 2 == 0 ? at::kFloat : at::kBFloat16).device(device()))});
    }
    many[41].tensor[0] = kInf;
    many[40].tensor[0] = kNan;
    many[99].tensor[0] = kNan;
    watch.check("loss", number(1));
    watch.check(many);
    watch.check("more", number(kInf));
  });
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->tensor, "layer 40");
  EXPECT_TRUE(finding->is_nan);
  EXPECT_THAT(finding->tensors, ElementsAre("layer 40", "layer 41", "layer 99", "more"));
}

TEST_P(FiniteWatchTest, CountsAStepOnceHoweverOftenItIsAsked) {
  FiniteWatch watch(device());
  for (int step = 1; step <= 5; ++step) {
    watch.check("first", number(1));
    (void)watch.found_inf();
    (void)watch.found_inf();
    watch.check("second", number(step == 4 ? kNan : 1));
    (void)watch.found_inf();
    watch.end_step();
  }
  ASSERT_TRUE(watch.find().has_value());
  EXPECT_EQ(watch.find()->step, 4);
  EXPECT_THAT(watch.find()->tensors, ElementsAre("second"));
}

TEST_P(FiniteWatchTest, CountsStepsWithoutChecks) {
  FiniteWatch watch(device());
  for (int step = 1; step <= 3; ++step) watch.end_step();
  watch.check("loss", number(kNan));
  watch.end_step();
  EXPECT_EQ(watch.find()->step, 4);
}

TEST_P(FiniteWatchTest, TwoGraphsShareOneWatch) {
  FiniteWatch watch(device());
  const at::Tensor one = number(1), other = number(1);
  Graph first(device()), second(device());
  first.capture([&] {
    watch.check("one", one * 2);
    watch.end_step();
  });
  second.capture([&] {
    watch.check("other", other * 2);
    watch.check("one", one * 3);
    watch.end_step();
  });
  first.replay();
  second.replay();
  first.replay();
  other.fill_(kNan);
  first.replay();
  second.replay();
  first.replay();
  ASSERT_TRUE(watch.find().has_value());
  EXPECT_EQ(watch.find()->step, 5);
  EXPECT_THAT(watch.find()->tensors, ElementsAre("other"));
}

TEST_P(FiniteWatchTest, LeavesGradientsToTheScalerWhereItIsOn) {
  SmallTraining training(device());
  GradScaler scaler(device());
  FiniteWatch watch(device(), {.gradients = !scaler.enabled()});
  const auto step = [&] {
    training.optimizer.zero_grad();
    training.backward(scaler.scale(training.forward()) * training.poison);
    scaler.unscale_(training.optimizer);
    watch.check_gradients(training.optimizer);
    clip_grad_norm_(training.optimizer, 1, {.error_if_nonfinite = &watch});
    watch.check("loss", training.loss / training.poison);
    scaler.step(training.optimizer);
    scaler.update();
    watch.end_step();
  };
  Graph graph(device());
  graph.capture(step);
  training.feed(1, std::numeric_limits<float>::max() / 1e4);  // the gradients overflow, the loss does not
  const std::vector<at::Tensor> before = training.copies();
  graph.replay();
  watch.wait();
  EXPECT_TRUE(same(scaler.current_scale(), number(32768)));
  EXPECT_TRUE(same(training.parameters[0], before[0]));
  training.x.fill_(kNan);
  graph.replay();
  EXPECT_THAT(refusal<NonFiniteError>("a loss of NaN under a scaler", [&] { watch.wait(); }),
              AllOf(HasSubstr("'loss' is NaN in step 2"), Not(HasSubstr("gradient of"))));
  EXPECT_TRUE(same(training.parameters[0], before[0])) << "not poisoned";
}

TEST_P(FiniteWatchTest, ChecksOfABrokenOffStepAreForgotten) {
  FiniteWatch watch(device());
  watch.check("loss", number(kNan));
  watch.abandon_step();
  watch.end_step();
  watch.wait();
  Graph graph(device());
  EXPECT_THROW(graph.capture(
                   [&] {
                     watch.check("loss", number(kNan));
                     if (is_capturing()) throw std::runtime_error("in the middle");
                     watch.abandon_step();
                   },
                   {.warmup = 1}),
               std::runtime_error);
  watch.check("other", number(1));
  watch.end_step();
  watch.wait();
}

class FiniteWatchRefusalTest : public FiniteWatchTest {};
PIANOLA_ON_EVERY_DEVICE(FiniteWatchRefusalTest);

TEST_P(FiniteWatchRefusalTest, TensorsItCannotCheck) {
  FiniteWatch watch(device());
  const auto check = [&](const at::Tensor& tensor) { return [&, tensor] { watch.check("it", tensor); }; };
  EXPECT_THAT(refusal<UsageError>("an undefined tensor", check({})), HasSubstr("'it' is undefined"));
  EXPECT_THAT(refusal<UsageError>("integers", check(number(1, at::kLong))),
              HasSubstr("'it' is Long: only floating-point tensors"));
  EXPECT_THAT(refusal<UsageError>("norms without names",
                                  [&] {
                                    watch.check_gradient_norms({"a", "b"}, at::ones({3}, device()));
                                  }),
              HasSubstr("got 2 names and 3 norms"));
  const std::vector<NamedTensor> missing = {{"weight", {}}};
  EXPECT_THAT(refusal<UsageError>("an undefined parameter", [&] { watch.check_gradients(missing); }),
              HasSubstr("'weight' is undefined"));
  if (!on_cuda()) return;
  EXPECT_THAT(refusal<UsageError>("another device", check(at::ones({}))),
              HasSubstr("'it' is on cpu, the FiniteWatch on cuda:0"));
}

TEST_P(FiniteWatchRefusalTest, ALossThatIsChangedBeforeItIsRead) {
  FiniteWatch watch(device());
  const at::Tensor loss = number(kNan);
  watch.check("loss", loss);
  loss.zero_();
  EXPECT_THAT(refusal<UsageError>("a changed loss", [&] { watch.end_step(); }),
              HasSubstr("'loss' was changed in place after check()"));
}

TEST_P(FiniteWatchRefusalTest, NumbersOutOfRangeAndCallsInsideACapture) {
  EXPECT_THAT(refusal<UsageError>("room for nothing", [] { (void)FiniteWatch(device(), {.max_tensors = 0}); }),
              HasSubstr("max_tensors must be 1 or more"));
  FiniteWatch watch(device(), {.max_tensors = 2});
  watch.check("a", number(1));
  watch.check("b", number(1));
  watch.end_step();
  watch.check("c", number(1));
  EXPECT_THAT(refusal<UsageError>("another name", [&] { watch.end_step(); }),
              AllOf(HasSubstr("3 tensors are checked, FiniteWatchOptions::max_tensors is 2"),
                    HasSubstr("the same name in every step")));
  EXPECT_THAT(refusal<UsageError>("a negative step", [&] { watch.reset(-1); }),
              HasSubstr("steps_done must be 0 or more, got -1"));
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("a poll in the step",
                                  [&] {
                                    graph.capture(
                                        [&] {
                                          watch.check("a", number(1));
                                          watch.check("b", number(1));
                                          watch.end_step();
                                          watch.poll();
                                        },
                                        {.warmup = 0});
                                  }),
              AllOf(HasSubstr("poll() of a FiniteWatch was called inside a capture"), HasSubstr("after the replay")));
}

}  // namespace
}  // namespace pianola::finite_watch_test
