#include <pianola/graph/lane_memory.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/parallel/lane_interference.hpp>
#include <pianola/parallel/testing/chains_of_work.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pianola::testing::lane_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

memory::StepRun run_of(const ChainsOfWork& work) {
  memory::StepRun run;
  run.blocks = work.blocks();
  return run;
}

// The work's blocks lie side by side at these bytes, as they do in the recording that looks for lanes.
std::size_t pairs_by_order(const ChainsOfWork& work, const parallel::Plan& plan) {
  return parallel::interference_on_lanes(plan, work.blocks(), work.places()).pairs();
}

TEST(LaneMemoryTest, SmallBlocksKeepTheirOrderAlone) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const ChainsOfWork work(seed);
    const parallel::Plan plan = parallel::make_plan(work.units(), 4);
    const auto on_lanes = graph::run_on_lanes(run_of(work), plan, work.places(), kNoLimit);
    ASSERT_TRUE(on_lanes.has_value());
    // All of them together take less than two MiB.
    EXPECT_EQ(on_lanes->interference.pairs(), pairs_by_order(work, plan)) << "step " << seed;
  }
}

TEST(LaneMemoryTest, WithoutRoomTheyLieAsOnOneLane) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const ChainsOfWork work(seed);
    const parallel::Plan plan = parallel::make_plan(work.units(), 4);
    const auto on_lanes = graph::run_on_lanes(run_of(work), plan, work.places(), /*most_more=*/0);
    ASSERT_TRUE(on_lanes.has_value());
    EXPECT_LE(memory::least_bytes(on_lanes->blocks, on_lanes->interference), memory::least_bytes(work.blocks(), {}));
  }
}

TEST(LaneMemoryTest, WithALittleRoomTheyTakeNoMoreAndLanesGainMost) {
  double serial_us = 0, planned_us = 0, best_us = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const ChainsOfWork work(seed);
    const parallel::Plan plan = parallel::make_plan(work.units(), 4);
    const std::uint64_t in_use = memory::least_bytes(work.blocks(), {}), room = in_use / 4;
    const auto on_lanes = graph::run_on_lanes(run_of(work), plan, work.places(), room);
    ASSERT_TRUE(on_lanes.has_value());
    const memory::OffsetPlan offsets = memory::plan_offsets(on_lanes->blocks, on_lanes->interference);
    EXPECT_TRUE(offsets.bytes <= in_use + room || on_lanes->interference.empty()) << "step " << seed;
    serial_us += plan.serial_us;
    best_us += plan.lanes.makespan_us;
    planned_us += parallel::make_plan(work.laid_out(offsets), 4).lanes.makespan_us;
  }
  EXPECT_LT(planned_us, best_us + (serial_us - best_us) / 4) << "three quarters of what lanes gain";
}

TEST(LaneMemoryTest, TooManyBlocksAreNotPlannedForLanes) {
  memory::StepRun run;
  run.blocks.resize(20'001, {.made = 0, .freed = 1, .bytes = 512});
  EXPECT_FALSE(graph::run_on_lanes(std::move(run), parallel::make_plan({}, 4), {}, kNoLimit).has_value());
}

TEST(LaneMemoryTest, WhatTheFirstRecordingMadeIsNamedWhereTheSecondUsesIt) {
  const at::Tensor before = at::ones({4}), outside = at::ones({4});
  TraceRecorder recorder({.call_sites = true});
  {
    const trace::OpStream stream({&recorder});
    const at::Tensor made = at::add(outside, outside);
    at::mul(made, before);
  }
  const OpTrace trace = recorder.take();
  const auto span_of = [](const at::Tensor& tensor) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    return std::vector<ByteSpan>{{.begin = begin, .end = begin + tensor.nbytes()}};
  };
  EXPECT_THAT(
      [&] { graph::check_nothing_carried(trace, span_of(before)); },
      ThrowsMessage<CaptureError>(AllOf(HasSubstr("aten::mul.Tensor uses a tensor that the step's run before made"),
                                        HasSubstr("lane_memory_test.cpp:"))));
  EXPECT_NO_THROW(graph::check_nothing_carried(trace, span_of(at::ones({4}))));
  EXPECT_NO_THROW(graph::check_nothing_carried(trace, {}));
}

}  // namespace
}  // namespace pianola::testing::lane_memory_test
