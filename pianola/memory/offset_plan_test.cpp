#include <pianola/memory/offset_plan.hpp>

#include <pianola/memory/allocator_model.hpp>
#include <pianola/memory/plan_proof.hpp>
#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace pianola::memory::offset_plan_test {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t kMiB = 1U << 20U;

std::uint64_t bytes_of(const std::vector<Block>& blocks) {
  const OffsetPlan plan = plan_offsets(blocks);
  EXPECT_EQ(find_flaw(blocks, plan), std::nullopt);
  EXPECT_GE(plan.bytes, plan.bound);
  return plan.bytes;
}

TEST(OffsetPlanTest, NothingTakesNothing) {
  const OffsetPlan plan = plan_offsets({});
  EXPECT_TRUE(plan.offsets.empty());
  EXPECT_EQ(plan.bytes, 0U);
}

TEST(OffsetPlanTest, BlocksOfOneMomentLieSideBySide) {
  const OffsetPlan plan = plan_offsets(std::vector<Block>{{.made = 0, .bytes = 1}, {.made = 0, .bytes = 513}});
  EXPECT_THAT(plan.offsets, ElementsAre(0U, 512U));
  EXPECT_EQ(plan.bytes, 1536U);
  EXPECT_EQ(plan.bound, 1536U);
}

TEST(OffsetPlanTest, WhatIsFreedWhenAnotherOneIsMadeIsItsPlace) {
  EXPECT_EQ(bytes_of({{.made = 0, .freed = 3, .bytes = 512}, {.made = 3, .freed = 4, .bytes = 512}}), 512U);
  EXPECT_EQ(bytes_of({{.made = 0, .freed = 4, .bytes = 512}, {.made = 3, .freed = 5, .bytes = 512}}), 1024U);
}

// The caching allocator takes 30 and then 40: what it freed is too small.
TEST(OffsetPlanTest, ALargerBlockLiesWhereASmallerOneLay) {
  const std::vector<Block> blocks = {{.made = 0, .freed = 1, .bytes = 30 * kMiB},
                                     {.made = 2, .freed = 3, .bytes = 40 * kMiB}};
  EXPECT_EQ(bytes_of(blocks), 40 * kMiB);
  EXPECT_EQ(pool_bytes(blocks), 70 * kMiB);
}

TEST(OffsetPlanTest, ALifeThatEndsBeforeItBeginsEndsThere) {
  EXPECT_EQ(bytes_of({{.made = 5, .freed = 5, .bytes = 512}, {.made = 5, .freed = 2, .bytes = 512}}), 1024U);
}

TEST(OffsetPlanTest, ThePlansOfTwoThousandRandomStepsAreFreeOfOverlap) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    const OffsetPlan plan = plan_offsets(blocks);
    ASSERT_EQ(find_flaw(blocks, plan), std::nullopt) << "step " << seed;
    ASSERT_GE(plan.bytes, plan.bound) << "step " << seed;
  }
}

// No more than 2 % and 2 MiB above what is in use at a time, and never above what the caching allocator would take.
TEST(OffsetPlanTest, ThePlansOfTrainingStepsAreNearTheBound) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const testing::TrainingStep step(seed);
    const OffsetPlan plan = plan_offsets(step.blocks());
    ASSERT_EQ(find_flaw(step.blocks(), plan), std::nullopt) << "step " << seed;
    EXPECT_LE(static_cast<double>(plan.bytes), 1.02 * static_cast<double>(plan.bound) + 2.0 * kMiB) << "step " << seed;
    EXPECT_LE(plan.bytes, pool_bytes(step.blocks())) << "step " << seed;
  }
}

// A day's work for one order after the other: they lie where they are made.
TEST(OffsetPlanTest, AHundredThousandBlocksArePlannedInAMoment) {
  std::vector<Block> blocks;
  for (std::uint32_t seed = 0; blocks.size() < 100'000; ++seed) {
    const Moment begin = 1000 * static_cast<Moment>(seed);
    for (Block block : testing::random_step(seed)) {
      block.freed = begin + std::min<Moment>(block.freed, 990);
      block.made += begin;
      blocks.push_back(block);
    }
  }
  const OffsetPlan plan = plan_offsets(blocks);
  EXPECT_EQ(find_flaw(blocks, plan), std::nullopt);
  EXPECT_LE(static_cast<double>(plan.bytes), 1.3 * static_cast<double>(plan.bound));
}

TEST(OffsetPlanTest, ManyHolesAreNoWork) {
  std::vector<Block> blocks;
  for (Moment i = 0; i < 100'000; ++i) {
    blocks.push_back({.made = i, .freed = i % 2 == 0 ? 100'000 : Block::kNever, .bytes = 512});
  }
  for (Moment i = 0; i < 50'000; ++i) blocks.push_back({.made = 100'001 + i, .bytes = 512});
  const OffsetPlan plan = plan_offsets(blocks);
  EXPECT_EQ(find_flaw(blocks, plan), std::nullopt);
  EXPECT_EQ(plan.bytes, plan.bound);
}

TEST(OffsetPlanTest, ThePlanDoesNotDependOnTheOrderOfTheBlocks) {
  const testing::TrainingStep step(7);
  std::vector<Block> reversed = step.blocks();
  std::ranges::reverse(reversed);
  EXPECT_EQ(find_flaw(reversed, plan_offsets(reversed)), std::nullopt);
  EXPECT_EQ(plan_offsets(reversed).bound, plan_offsets(step.blocks()).bound);
}

}  // namespace
}  // namespace pianola::memory::offset_plan_test
