#include <pianola/parallel/lane_interference.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>
#include <pianola/parallel/proof.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pianola::parallel::lane_interference_test {
namespace {

using memory::Block;
using memory::Interference;
using pianola::testing::read;
using pianola::testing::step;
using pianola::testing::unit;
using pianola::testing::write;

/// A step of several chains that meet now and then: each unit reads a few results and makes one, which is freed behind its last reader.
/// Each result lies at bytes of its own.
class ChainsOfWork {
 public:
  explicit ChainsOfWork(std::uint32_t seed) : random_(seed) {
    const std::size_t chains = 2 + random_() % 4, count = 20 + random_() % 80;
    std::vector<std::size_t> newest;
    for (std::size_t i = 0; i < chains; ++i) newest.push_back(make({}));
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t& end = newest[random_() % chains];
      std::vector<std::size_t> reads = {end};
      if (random_() % 6 == 0) reads.push_back(newest[random_() % chains]);
      if (random_() % 4 == 0) reads.push_back(random_() % blocks_.size());
      end = make(reads);
    }
    make(newest);
    units_ = step(std::move(units_));
  }

  [[nodiscard]] const std::vector<Unit>& units() const { return units_; }
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  [[nodiscard]] const std::vector<ByteSpan>& places() const { return places_; }

  /// The same units, with the blocks where a plan has them.
  [[nodiscard]] std::vector<Unit> laid_out(const memory::OffsetPlan& plan) const {
    std::vector<Unit> moved = units_;
    for (Unit& one : moved) {
      for (Access& access : one.accesses) {
        const auto at = std::ranges::find(places_, access.bytes.begin, &ByteSpan::begin);
        const std::uint64_t begin = kRegion + plan.offsets[static_cast<std::size_t>(at - places_.begin())];
        access.bytes = {.begin = begin, .end = begin + access.bytes.size()};
      }
    }
    return moved;
  }

 private:
  static constexpr std::uint64_t kRegion = std::uint64_t{1} << 40U;

  std::size_t make(const std::vector<std::size_t>& reads) {
    const auto now = static_cast<memory::Moment>(units_.size());
    std::vector<Access> accesses;
    for (const std::size_t block : reads) {
      accesses.push_back(read(places_[block]));
      blocks_[block].freed = now + 1;
    }
    const std::uint64_t bytes = 512 * (1 + random_() % 64);
    places_.push_back({.begin = next_, .end = next_ + bytes});
    next_ += bytes;
    accesses.push_back(write(places_.back()));
    units_.push_back(unit(std::move(accesses), static_cast<double>(1 + random_() % 9)));
    blocks_.push_back({.made = now, .freed = now + 1, .bytes = bytes});
    return blocks_.size() - 1;
  }

  std::mt19937 random_;
  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  std::vector<ByteSpan> places_;
  std::uint64_t next_ = 4096;
};

// Two chains of two units each, with a block each.
TEST(LaneInterferenceTest, WhatAnotherLaneMayStillReadKeepsItsBytes) {
  const std::vector<ByteSpan> places = {{0, 512}, {512, 1024}};
  const std::vector<Unit> units = step({unit({write(places[0])}, 9), unit({read(places[0]), write({5000, 5001})}, 9),
                                        unit({write(places[1])}, 3), unit({read(places[1]), write({6000, 6001})}, 3)});
  const std::vector<Block> blocks = {{.made = 0, .freed = 2, .bytes = 512}, {.made = 2, .freed = 4, .bytes = 512}};
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 2), blocks, places).has(0, 1));
  EXPECT_TRUE(interference_on_lanes(make_plan(units, 1), blocks, places).empty()) << "one lane keeps the order of the step";
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
