#include <pianola/parallel/lane_interference.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>
#include <pianola/parallel/proof.hpp>
#include <pianola/parallel/testing/chains_of_work.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pianola::parallel::lane_interference_test {
namespace {

using memory::Block;
using memory::Interference;
using pianola::testing::ChainsOfWork;
using pianola::testing::read;
using pianola::testing::step;
using pianola::testing::unit;
using pianola::testing::write;

// Two chains of two units each, with a block each.
TEST(LaneInterferenceTest, WhatAnotherLaneMayStillReadKeepsItsBytes) {
  const std::vector<ByteSpan> places = {{0, 512}, {512, 1024}};
  const std::vector<Unit> units = step({unit({write(places[0])}, 9), unit({read(places[0]), write({5000, 5001})}, 9),
                                        unit({write(places[1])}, 3), unit({read(places[1]), write({6000, 6001})}, 3)});
  const std::vector<Block> blocks = {{.made = 0, .freed = 2, .bytes = 512}, {.made = 2, .freed = 4, .bytes = 512}};
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 2), blocks, places).has(0, 1));
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 1), blocks, places).empty())
      << "one lane keeps the order of the step";
}

TEST(LaneInterferenceTest, OneUnitMayFreeABlockAndTakeItsBytesAgain) {
  const std::vector<ByteSpan> places = {{0, 512}, {512, 1024}};
  const std::vector<Unit> units = step({unit({write(places[0]), write(places[1])}), unit({})});
  const std::vector<Block> blocks = {{.made = 0, .freed = 1, .bytes = 512}, {.made = 1, .freed = 2, .bytes = 512}};
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 2), blocks, places).empty());
}

TEST(LaneInterferenceTest, ALaneThatRunsTheLaterUnitFirstSharesNothing) {
  // On one lane the long unit goes first, which was captured last.
  const std::vector<ByteSpan> places = {{0, 512}, {512, 1024}};
  const std::vector<Unit> units = step({unit({write(places[0])}, 1), unit({write(places[1])}, 9)});
  const std::vector<Block> blocks = {{.made = 0, .freed = 1, .bytes = 512}, {.made = 1, .freed = 2, .bytes = 512}};
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 1), blocks, places).has(0, 1));
}

// What was planned stays right where blocks share bytes: the graph needs not one edge more.
TEST(LaneInterferenceTest, TheLanesOfAThousandStepsAreProvedForTheBlocksAsTheyAreLaidOut) {
  std::size_t shared = 0;
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const ChainsOfWork work(seed);
    const Plan plan = make_plan(work.units(), 4);
    const Interference interference = interference_on_lanes(plan, work.blocks(), work.places());
    const memory::OffsetPlan offsets = memory::plan_offsets(work.blocks(), interference);
    ASSERT_EQ(memory::find_flaw(work.blocks(), offsets, {}, interference), std::nullopt) << "step " << seed;
    const Proof proof = prove(work.laid_out(offsets), work.units().size(), plan.edges);
    ASSERT_TRUE(proof.holds()) << "step " << seed << ": " << proof.failure;
    if (offsets.bytes < work.places().back().end - work.places().front().begin) ++shared;
  }
  EXPECT_GT(shared, 900U);
}

// Blocks laid out for one lane need edges that four lanes have not.
TEST(LaneInterferenceTest, WithoutItTheLanesCannotBeProved) {
  std::size_t wrong = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const ChainsOfWork work(seed);
    const memory::OffsetPlan offsets = memory::plan_offsets(work.blocks());
    wrong += prove(work.laid_out(offsets), work.units().size(), make_plan(work.units(), 4).edges).holds() ? 0 : 1;
  }
  EXPECT_GT(wrong, 90U);
}

// By the model's times blocks share more, and the lanes planned anew for that are hardly longer.
TEST(LaneInterferenceTest, TimesOfTheModelShareMoreForHardlyLongerLanes) {
  double bytes_by_order = 0, bytes_by_times = 0, us = 0, us_by_times = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const ChainsOfWork work(seed);
    const Plan plan = make_plan(work.units(), 4);
    const Interference by_order = interference_on_lanes(plan, work.blocks(), work.places());
    const Interference by_times = interference_on_lanes(plan, work.blocks(), work.places(), 0);
    ASSERT_LE(by_times.pairs(), by_order.pairs());
    const memory::OffsetPlan offsets = memory::plan_offsets(work.blocks(), by_times);
    const Plan again = make_plan(work.laid_out(offsets), 4);
    ASSERT_TRUE(prove(again.units, again.units.size(), again.edges).holds()) << "step " << seed;
    bytes_by_order += static_cast<double>(memory::plan_offsets(work.blocks(), by_order).bytes);
    bytes_by_times += static_cast<double>(offsets.bytes);
    us += plan.lanes.makespan_us;
    us_by_times += again.lanes.makespan_us;
  }
  EXPECT_LT(bytes_by_times, 0.95 * bytes_by_order);
  EXPECT_LT(us_by_times, 1.1 * us);
}

}  // namespace
}  // namespace pianola::parallel::lane_interference_test
