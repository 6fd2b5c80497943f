#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/numeric_region.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::testing::planned_lanes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Lanes whose memory is planned. On the tape lanes are planned and memory is not, and all else is the same.
class PlannedLanesTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) x = randn({kWidth, kWidth});
  }

  static constexpr std::int64_t kWidth = 256;

  static CaptureOptions planned(int branches = 4) {
    return {.warmup = 2, .branches = branches, .parallel = {.self_check = false}, .plan_memory = true};
  }

  // Four chains of products that only their sum joins: each has two blocks at a time, and frees them one after the other.
  void independent() {
    std::vector<at::Tensor> ends;
    for (int chain = 0; chain < 4; ++chain) {
      at::Tensor end = x * (chain + 1);
      for (int i = 0; i < 6; ++i) end = at::mm(end, x) * 0.1;
      ends.push_back(end);
    }
    y = at::stack(ends).sum(0);
  }

  void expect_like_eager(Graph& graph) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      x.copy_(randn({kWidth, kWidth}, 10 + i));
      graph.replay();
      const at::Tensor replayed = y;
      independent();
      EXPECT_TRUE(same(replayed, y)) << "in replay " << i;
      y = replayed;
    }
  }

  at::Tensor x, y;
};
PIANOLA_ON_EVERY_DEVICE(PlannedLanesTest);

TEST_P(PlannedLanesTest, ReplaysEqualEager) {
  Training training(device());
  Graph graph(device());
  graph.capture([&] { training.step(); }, planned());
  EXPECT_TRUE(graph.info().branches.has_value());
  EXPECT_EQ(graph.info().planned_bytes != 0, device().is_cuda());
  expect_replays_equal_eager(graph, training, 5);
}

TEST_P(PlannedLanesTest, DropoutDrawsTheNumbersOfEager) { expect_dropout_like_eager(generator(), planned()); }

TEST_P(PlannedLanesTest, IndependentChainsKeepTheirLanes) {
  Graph graph(device()), unplanned(device());
  graph.capture([&] { independent(); }, planned());
  expect_like_eager(graph);
  const BranchInfo lanes = *graph.info().branches;
  CaptureOptions without_plan = planned();
  without_plan.plan_memory = false;
  unplanned.capture([&] { independent(); }, without_plan);
  EXPECT_EQ(lanes.rebuilt, device().is_cuda()) << lanes.reason;
  EXPECT_GE(lanes.lanes, 4U);
  // The model has no reuse in the way: as long as where reuse was delayed, or shorter.
  EXPECT_LE(lanes.modelled_rebuilt_us, 1.01 * unplanned.info().branches->modelled_rebuilt_us);
  EXPECT_EQ(lanes.held_bytes, 0U);
}

TEST_P(PlannedLanesTest, TheyTakeLittleMoreThanTheirBound) {
  if (!device().is_cuda()) GTEST_SKIP() << "the tape plans no memory";
  x = randn({1024, 1024});  // blocks of 4 MiB
  Graph graph(device()), unplanned(device());
  graph.capture([&] { independent(); }, planned());
  CaptureOptions without_plan = planned();
  without_plan.plan_memory = false;
  unplanned.capture([&] { independent(); }, without_plan);
  const GraphInfo info = graph.info();
  EXPECT_NE(info.planned_bound_bytes, 0U);
  EXPECT_GE(info.planned_bytes, info.planned_bound_bytes);
  EXPECT_LE(static_cast<double>(info.planned_bytes), 1.03 * static_cast<double>(info.planned_bound_bytes));
  EXPECT_LE(info.pool_bytes, unplanned.info().pool_bytes);
}

// The eager runs, and two recordings where memory is planned.
TEST_P(PlannedLanesTest, TheStepIsRecordedTwice) {
  int calls = 0;
  Graph graph(device());
  graph.capture(
      [&] {
        ++calls;
        independent();
      },
      planned());
  EXPECT_EQ(calls, device().is_cuda() ? 4 : 3);
  expect_like_eager(graph);
}

TEST_P(PlannedLanesTest, WhatTheFirstRecordingMadeMayBeHeld) {
  std::vector<at::Tensor> held;
  {
    Graph graph(device());
    graph.capture(
        [&] {
          independent();
          held.push_back(y);
        },
        planned());
    expect_like_eager(graph);
  }
  held.clear();
  Graph again(device());
  again.capture([&] { independent(); }, planned());
  expect_like_eager(again);
}

TEST_P(PlannedLanesTest, AStepThatFailsInTheFirstRecordingLeavesEverythingAsItWas) {
  expect_nothing_lost_by_a_failure(device(), planned());
}

TEST_P(PlannedLanesTest, WhatCannotBeCapturedIsNamedInTheFirstRecording) {
  if (!device().is_cuda()) GTEST_SKIP() << "the tape records what the host reads";
  Graph graph(device());
  const auto reads = [&] {
    independent();
    if (is_recording()) (void)y.sum().item<float>();
  };
  EXPECT_THAT(
      [&] { graph.capture(reads, planned()); },
      ThrowsMessage<CaptureError>(AllOf(HasSubstr("_local_scalar_dense"), HasSubstr("planned_lanes_test.cpp:"))));
  graph.capture([&] { independent(); }, planned());
  expect_like_eager(graph);
}

// Nothing of it runs: there is nothing to put back, and no copy could be made.
TEST_P(PlannedLanesTest, WhatOnlyRecordingsWriteStaysAsItWas) {
  at::Tensor other = randn({kWidth, kWidth}, 5);
  const at::Tensor before = other.clone();
  CaptureOptions options = planned();
  options.accept_capture_path = true;
  Graph graph(device());
  graph.capture(
      [&] {
        independent();
        if (is_recording()) other.add_(1);
      },
      options);
  EXPECT_TRUE(same(other, before));
  graph.replay();
  EXPECT_TRUE(same(other, before + 1));
}

// The first recording computes nothing: the second one would read what is not there.
TEST_P(PlannedLanesTest, WhatOneRunLeavesForTheNextIsRefused) {
  if (!device().is_cuda()) GTEST_SKIP() << "the tape records once";
  at::Tensor carried = at::mm(x, x);
  const auto carries = [&] {
    independent();
    carried = at::mm(carried, x) * 0.1;
  };
  Graph graph(device());
  EXPECT_THAT([&] { graph.capture(carries, planned()); },
              ThrowsMessage<CaptureError>(AllOf(HasSubstr("aten::mm uses a tensor that the step's run before made"),
                                                HasSubstr("planned_lanes_test.cpp:"), HasSubstr("in place (copy_)"))));
  at::Tensor written = at::mm(x, x);
  const at::Tensor before = written.clone();
  graph.capture(
      [&] {
        independent();
        written.copy_(at::mm(written, x) * 0.1);
      },
      planned());
  EXPECT_TRUE(same(written, before));
  graph.replay();
  EXPECT_TRUE(same(written, at::mm(before, x) * 0.1));
}

// A region that was open before hears of no run of the capture: none counts.
TEST_P(PlannedLanesTest, ARegionHearsOfNeitherRecording) {
  struct Region : trace::NumericRegion {
    Region() : NumericRegion("other numbers of planned lanes") {}
    ~Region() override { leave(); }
    void hear(const std::shared_ptr<const void>& /*what*/) override { ++heard; }
    int heard = 0;
  } region;
  const auto what = std::make_shared<const int>(0);
  Graph graph(device());
  graph.capture(
      [&] {
        trace::NumericRegion::current()->ran(what);
        independent();
      },
      planned());
  EXPECT_EQ(region.heard, 0);
}

TEST_P(PlannedLanesTest, GraphsOfAPoolThatPlansShareItsRegion) {
  const GraphPool pool(device(), GraphPool::Options{.plan_memory = true});
  Training one(device()), other(device());
  Graph first(device()), second(device()), third(device());
  CaptureOptions options = planned();
  options.pool = pool;
  first.capture([&] { one.step(); }, options);
  second.capture([&] { other.step(); }, options);
  third.capture([&] { independent(); }, options);
  expect_like_eager(third);
  expect_replays_equal_eager(second, other);
  expect_replays_equal_eager(first, one);
}

TEST_P(PlannedLanesTest, AChainHasNoLanesAndIsPlannedAsOne) {
  const auto chain = [&] {
    y = x;
    for (int i = 0; i < 12; ++i) y = at::mm(y, x) * 0.1;
  };
  Graph graph(device());
  graph.capture(chain, planned());
  EXPECT_THAT(graph.info().branches->reason, HasSubstr("the step is a chain"));
  x.copy_(randn({kWidth, kWidth}, 3));
  graph.replay();
  const at::Tensor replayed = y;
  chain();
  EXPECT_TRUE(same(replayed, y));
}

TEST_P(PlannedLanesTest, ALimitCountsWhatLanesTakeMore) {
  Graph graph(device());
  CaptureOptions options = planned();
  options.memory_limit = 1;
  EXPECT_THAT([&] { graph.capture([&] { independent(); }, options); },
              ThrowsMessage<OutOfMemoryError>(HasSubstr("a graph's pool would take")));
  options.memory_limit = std::size_t{64} << 20U;
  graph.capture([&] { independent(); }, options);
  expect_like_eager(graph);
}

}  // namespace
}  // namespace pianola::testing::planned_lanes_test
