#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <stdexcept>

namespace pianola::testing::planned_memory_test {
namespace {

using ::testing::HasSubstr;

// On the tape nothing is planned, and all else is the same.
class PlannedMemoryTest : public DeviceTest {
 protected:
  static CaptureOptions planned(int warmup = 2) { return {.warmup = warmup, .plan_memory = true}; }
};
PIANOLA_ON_EVERY_DEVICE(PlannedMemoryTest);

TEST_P(PlannedMemoryTest, ReplaysEqualEager) {
  Training training(device());
  Graph graph(device());
  graph.capture([&] { training.step(); }, planned());
  EXPECT_EQ(graph.info().planned_bytes != 0, device().is_cuda());
  expect_replays_equal_eager(graph, training, 5);
}

TEST_P(PlannedMemoryTest, GraphsOfAPoolPlanEachForItself) {
  const GraphPool pool(device());
  Training one(device()), other(device());
  Graph first(device()), second(device());
  CaptureOptions options = planned();
  options.pool = pool;
  first.capture([&] { one.step(); }, options);
  second.capture([&] { other.step(); }, options);
  expect_replays_equal_eager(first, one);
  expect_replays_equal_eager(second, other);
}

TEST_P(PlannedMemoryTest, LanesThatNobodyAskedForAreLeftOut) {
  Training training(device());
  Graph graph(device());
  CaptureOptions options = planned();
  options.branches = kAutoBranches;
  graph.capture([&] { training.step(); }, options);
  EXPECT_FALSE(graph.info().branches.has_value());
  expect_replays_equal_eager(graph, training);
}

TEST_P(PlannedMemoryTest, ALimitIsThatOfThePlan) {
  Training training(device());
  Graph graph(device());
  CaptureOptions options = planned();
  options.memory_limit = 1;
  EXPECT_THAT([&] { graph.capture([&] { training.step(); }, options); },
              ::testing::ThrowsMessage<OutOfMemoryError>(HasSubstr("a graph's pool would take")));
  options.memory_limit = 2U << 20U;  // a segment of torch's
  graph.capture([&] { training.step(); }, options);
  expect_replays_equal_eager(graph, training);
}

TEST_P(PlannedMemoryTest, AStepThatFailsLeavesEverythingAsItWas) {
  expect_nothing_lost_by_a_failure(device(), planned());
}

TEST_P(PlannedMemoryTest, WhatAPlanCannotServeIsRefused) {
  Graph graph(device());
  const auto step = [&] { (void)at::empty({8}, device()).fill_(1); };
  const auto refusal = [&](const CaptureOptions& options, const char* sentence) {
    EXPECT_THAT([&] { graph.capture(step, options); }, ::testing::ThrowsMessage<UsageError>(HasSubstr(sentence)));
  };
  refusal(planned(0), "plan_memory needs a warm-up run, which shows the lives of the blocks, and warmup = 0");
}

}  // namespace
}  // namespace pianola::testing::planned_memory_test
