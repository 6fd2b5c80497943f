#include <pianola/training/learning_rate.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <cmath>
#include <numbers>

namespace pianola::learning_rate_test {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

TEST(LearningRateTest, StaysConstant) { EXPECT_EQ(LearningRate::constant()(1000, 0.5), 0.5); }

TEST(LearningRateTest, MovesLinearlyAndHolds) {
  const LearningRate rate = LearningRate::linear(4, 0, 2);
  for (int step = 0; step < 4; ++step) EXPECT_EQ(rate(step, 3), 1.5 * step);
  EXPECT_EQ(rate(4, 3), 6);
  EXPECT_EQ(rate(100, 3), 6);
}

TEST(LearningRateTest, FollowsACosineAndHoldsItsMinimum) {
  const LearningRate rate = LearningRate::cosine(10, 0.1);
  EXPECT_EQ(rate(0, 1), 1);
  EXPECT_EQ(rate(3, 1), 0.1 + 0.9 * (1 + std::cos(std::numbers::pi * 3 / 10)) / 2);
  EXPECT_DOUBLE_EQ(rate(10, 1), 0.1);
  EXPECT_EQ(rate(11, 1), rate(10, 1));
}

TEST(LearningRateTest, RisesAndFallsInOneCycle) {
  const LearningRate rate = LearningRate::one_cycle(100);
  EXPECT_NEAR(rate(0, 1), 1.0 / 25, 1e-12);
  EXPECT_DOUBLE_EQ(rate(29, 1), 1);
  EXPECT_LT(rate(28, 1), 1);
  EXPECT_LT(rate(30, 1), 1);
  EXPECT_NEAR(rate(99, 1), 1.0 / 25 / 1e4, 1e-12);
  EXPECT_EQ(rate(1000, 1), rate(99, 1));
}

TEST(LearningRateTest, IsANumberInCyclesWithoutAPhase) {
  for (const double part : {0.0, 0.1, 1.0}) {
    for (const int steps : {1, 2, 10}) {
      const LearningRate rate = LearningRate::one_cycle(steps, {.pct_start = part});
      for (int step = 0; step < steps; ++step) EXPECT_TRUE(std::isfinite(rate(step, 1))) << part << " of " << steps;
    }
  }
}

TEST(LearningRateTest, FallsInSteps) {
  const LearningRate rate = LearningRate::step_decay(3, 0.5);
  EXPECT_EQ(rate(2, 8), 8);
  EXPECT_EQ(rate(3, 8), 4);
  EXPECT_EQ(rate(9, 8), 1);
}

TEST(LearningRateTest, IsComposed) {
  const LearningRate rate = LearningRate::warmup(4, LearningRate::step_decay(2, 0.5));
  EXPECT_EQ(rate(0, 8), 0);
  EXPECT_EQ(rate(3, 8), 6);
  EXPECT_EQ(rate(4, 8), 8);
  EXPECT_EQ(rate(6, 8), 4);
  EXPECT_EQ(LearningRate::sequence(LearningRate::constant(), 0, LearningRate::step_decay(1, 0.5))(1, 8), 4);
}

TEST(LearningRateTest, TakesAFunction) {
  const LearningRate rate([](std::int64_t step, double base) { return base / static_cast<double>(1 + step); });
  EXPECT_EQ(rate(3, 2), 0.5);
}

TEST(LearningRateTest, NamesWhatIsOutOfRange) {
  EXPECT_THAT(refusal<UsageError>("a schedule of no steps", [] { (void)LearningRate::cosine(0); }),
              HasSubstr("needs 1 steps or more, got 0"));
  EXPECT_THAT(
      refusal<UsageError>("a negative length",
                          [] { (void)LearningRate::sequence(LearningRate::constant(), -1, LearningRate::constant()); }),
      HasSubstr("needs 0 steps or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("a negative factor", [] { (void)LearningRate::linear(2, -1, 1); }),
              HasSubstr("start must be finite and 0 or more, got -1"));
  EXPECT_THAT(
      refusal<UsageError>("a rise of more than all", [] { (void)LearningRate::one_cycle(2, {.pct_start = 2}); }),
      HasSubstr("pct_start must be between 0 and 1, got 2"));
  EXPECT_THAT(refusal<UsageError>("a factor of 0", [] { (void)LearningRate::one_cycle(2, {.div_factor = 0}); }),
              HasSubstr("div_factor must be finite and above 0, got 0"));
  EXPECT_THAT(refusal<UsageError>("a negative step of a schedule", [] { (void)LearningRate::constant()(-1, 1); }),
              HasSubstr("steps count from 0, got -1"));
  EXPECT_THAT(refusal<UsageError>("no function", [] { (void)LearningRate{LearningRate::Function()}; }),
              HasSubstr("needs a function"));
}

}  // namespace
}  // namespace pianola::learning_rate_test
