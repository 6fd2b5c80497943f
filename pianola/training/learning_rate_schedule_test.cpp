#include <pianola/training/learning_rate_schedule.hpp>

#include <pianola/training/sgd.hpp>
#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/core/Dict.h>
#include <ATen/ops/zeros.h>

#include <memory>

namespace pianola::learning_rate_schedule_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

class LearningRateScheduleTest : public testing::OptimizerTest {
 protected:
  // Two groups, with base rates 0.1 and 0.3.
  static std::unique_ptr<SGD> sgd(const Problem& problem) {
    return std::make_unique<SGD>(std::vector<ParameterGroup<SGDOptions>>{
        {{problem.parameters[0], problem.parameters[1]}, {.lr = 0.1, .momentum = 0.9}},
        {{problem.parameters[2], problem.parameters[3]}, {.lr = 0.3}}});
  }
  static LearningRate rate() { return LearningRate::warmup(3, LearningRate::cosine(5, 0.01), 0.1); }
};
PIANOLA_ON_EVERY_DEVICE(LearningRateScheduleTest);

TEST_P(LearningRateScheduleTest, WritesTheRatesOfEachGroup) {
  const Problem problem(device());
  const auto optimizer = sgd(problem);
  LearningRateSchedule schedule(*optimizer, rate(), {0.1, 0.3});
  for (std::int64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(schedule.steps(), step);
    EXPECT_THAT(schedule.rates(), ElementsAre(rate()(step, 0.1), rate()(step, 0.3)));
    EXPECT_EQ(optimizer->learning_rate(0).item<float>(), static_cast<float>(rate()(step, 0.1)));
    EXPECT_EQ(optimizer->learning_rate(1).item<float>(), static_cast<float>(rate()(step, 0.3)));
    schedule.step();
  }
}

TEST_P(LearningRateScheduleTest, TakesWhatTheGroupsHaveAsBase) {
  const Problem problem(device());
  const auto optimizer = sgd(problem);
  optimizer->set_learning_rate(0.5, 1);
  const LearningRateSchedule schedule(*optimizer, LearningRate::constant());
  EXPECT_THAT(schedule.rates(), ElementsAre(static_cast<double>(0.1F), 0.5));
  EXPECT_THAT(LearningRateSchedule(*optimizer, LearningRate::constant(), {2}).rates(), ElementsAre(2, 2));
}

TEST_P(LearningRateScheduleTest, IsFollowedByReplays) {
  const Problem problem(device()), other(device());
  const auto eager = sgd(problem), graphed = sgd(other);
  LearningRateSchedule one(*eager, rate(), {0.1, 0.3}), two(*graphed, rate(), {0.1, 0.3});
  const auto step = [](Optimizer& optimizer, const Problem& of) {
    optimizer.zero_grad();
    of.backward();
    optimizer.step();
  };
  Graph graph(device());
  graph.capture([&] { step(*graphed, other); });
  for (int i = 0; i < 10; ++i) {
    step(*eager, problem);
    one.step();
    graph.replay();
    two.step();
    expect_same(all_of(*graphed), all_of(*eager), "in step " + std::to_string(i));
  }
}

TEST_P(LearningRateScheduleTest, OnTheDeviceGivesTheSameBitsWithoutTheHost) {
  const Problem problem(device()), other(device());
  const auto eager = sgd(problem), graphed = sgd(other);
  LearningRateSchedule host(*eager, rate(), {0.1, 0.3}), start(*graphed, rate(), {0.1, 0.3});
  host.step();
  start.step();
  DeviceLearningRateSchedule schedule = start.on_device(12);
  const auto step = [](Optimizer& optimizer, const Problem& of, auto& of_rates) {
    optimizer.zero_grad();
    of.backward();
    optimizer.step();
    of_rates.step();
  };
  Graph graph(device());
  graph.capture([&] { step(*graphed, other, schedule); });
  for (int i = 0; i < 10; ++i) {
    step(*eager, problem, host);
    graph.replay();
    expect_same(all_of(*graphed), all_of(*eager), "in step " + std::to_string(i));
    EXPECT_EQ(schedule.steps(), host.steps());
  }
  for (int i = 0; i < 5; ++i) graph.replay();
  EXPECT_EQ(schedule.steps(), 12) << "the last rate holds";
}

TEST_P(LearningRateScheduleTest, ComesBackFromItsState) {
  const Problem problem(device());
  const auto optimizer = sgd(problem);
  LearningRateSchedule schedule(*optimizer, rate(), {0.1, 0.3});
  for (int i = 0; i < 5; ++i) schedule.step();
  const c10::IValue state = schedule.state_dict();
  const at::Tensor at_five = optimizer->learning_rate(1).clone();
  for (int i = 0; i < 3; ++i) schedule.step();
  schedule.load_state_dict(state);
  EXPECT_EQ(schedule.steps(), 5);
  EXPECT_TRUE(same(optimizer->learning_rate(1), at_five));
  DeviceLearningRateSchedule on_device = schedule.on_device(9);
  on_device.step();
  on_device.load_state_dict(state);
  EXPECT_EQ(on_device.steps(), 5);
  EXPECT_TRUE(same(optimizer->learning_rate(1), at_five));
  schedule.load_state_dict(on_device.state_dict());
}

TEST_P(LearningRateScheduleTest, RefusesToBeFrozen) {
  const Problem problem(device());
  const auto optimizer = sgd(problem);
  LearningRateSchedule schedule(*optimizer, rate(), {0.1});
  Graph graph(device());
  EXPECT_THAT(
      refusal<UsageError>("a captured schedule", [&] { graph.capture([&] { schedule.step(); }, {.warmup = 0}); }),
      AllOf(HasSubstr("inside a capture would freeze the learning rate"), HasSubstr("on_device(total_steps)")));
  EXPECT_EQ(schedule.steps(), 0);
}

TEST_P(LearningRateScheduleTest, NamesWhatIsWrong) {
  const Problem problem(device());
  const auto optimizer = sgd(problem);
  EXPECT_THAT(refusal<UsageError>("three base rates",
                                  [&] {
                                    LearningRateSchedule(*optimizer, rate(), {1, 2, 3});
                                  }),
              HasSubstr("one for each of the 2, got 3"));
  EXPECT_THAT(refusal<UsageError>("a negative base rate", [&] { LearningRateSchedule(*optimizer, rate(), {-1}); }),
              HasSubstr("a base rate must be finite and 0 or more"));
  EXPECT_THAT(
      refusal<UsageError>("a schedule of a vector", [&] { LearningRateSchedule({at::zeros({2}, device())}, rate()); }),
      HasSubstr("floating-point tensors of one element each, got 2 of Float"));
  EXPECT_THAT(
      refusal<UsageError>("a schedule of nothing", [&] { LearningRateSchedule(std::vector<at::Tensor>(), rate()); }),
      HasSubstr("at least one scalar"));
  LearningRateSchedule schedule(*optimizer, rate(), {0.1});
  for (int i = 0; i < 5; ++i) schedule.step();
  EXPECT_THAT(refusal<UsageError>("a table that is too short", [&] { (void)schedule.on_device(4); }),
              HasSubstr("must be the 5 steps that were taken or more, got 4"));
  DeviceLearningRateSchedule on_device = LearningRateSchedule(*optimizer, rate(), {0.1}).on_device(2);
  EXPECT_THAT(refusal<UsageError>("a step behind the table", [&] { on_device.load_state_dict(schedule.state_dict()); }),
              HasSubstr("its step 5 lies behind the table of 2"));
  EXPECT_THAT(refusal<UsageError>("a schedule from a number", [&] { schedule.load_state_dict(3); }),
              HasSubstr("it must be a dict"));
  const c10::IValue state = schedule.state_dict();
  state.toGenericDict().insert_or_assign("steps", -1);
  EXPECT_THAT(refusal<UsageError>("a schedule at step -1", [&] { schedule.load_state_dict(state); }),
              HasSubstr("'steps' must be an integer of 0 or more"));
  const LearningRateSchedule other(*optimizer, rate(), {0.2});
  EXPECT_THAT(refusal<UsageError>("a schedule of other rates", [&] { schedule.load_state_dict(other.state_dict()); }),
              HasSubstr("'base_rates' are not those of this schedule"));
  (void)state.toGenericDict().erase("steps");
  EXPECT_THAT(refusal<UsageError>("a schedule without steps", [&] { schedule.load_state_dict(state); }),
              HasSubstr("it lacks 'steps'"));
  EXPECT_EQ(schedule.steps(), 5);
}

}  // namespace
}  // namespace pianola::learning_rate_schedule_test
