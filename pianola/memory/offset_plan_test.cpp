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

// 512 free, 512 taken, 1024 free, 512 taken.
const std::vector<Piece> kTaken = {{.address = 2048, .bytes = 512}, {.address = 512, .bytes = 512}};

TEST(OffsetPlanTest, BlocksLieAroundWhatIsTaken) {
  const std::vector<Block> blocks = {{.made = 0, .freed = 4, .bytes = 512}, {.made = 1, .freed = 4, .bytes = 1024}};
  const OffsetPlan plan = plan_offsets(blocks, kTaken);
  EXPECT_THAT(plan.offsets, ElementsAre(0U, 1024U));
  EXPECT_EQ(plan.bytes, 2048U);
  EXPECT_EQ(plan.bound, 2048U);
  const std::vector<Block> large = {{.made = 0, .freed = 4, .bytes = 1536}};
  EXPECT_THAT(plan_offsets(large, kTaken).offsets, ElementsAre(2560U));
  EXPECT_EQ(plan_offsets({}, kTaken).bytes, 0U);
}

TEST(OffsetPlanTest, WhatIsNeverFreedLiesLow) {
  const std::vector<Block> blocks = {{.made = 0, .freed = 4, .bytes = 4 * kMiB},
                                     {.made = 1, .freed = 3, .bytes = kMiB},
                                     {.made = 2, .bytes = 512},
                                     {.made = 3, .bytes = 1024}};
  const OffsetPlan plan = plan_offsets(blocks, std::vector<Piece>());
  EXPECT_EQ(find_flaw(blocks, plan), std::nullopt);
  EXPECT_LT(std::max(plan.offsets[2], plan.offsets[3]), 1536U);
  EXPECT_LE(plan.bytes, plan.bound + 1536);
}

TEST(OffsetPlanTest, AHundredThousandBlocksArePlannedAroundWhatIsTaken) {
  std::vector<Block> blocks;
  for (Moment i = 0; i < 100'000; ++i) {
    blocks.push_back({.made = i, .freed = i % 100 == 0 ? Block::kNever : i + 50, .bytes = 512});
  }
  const OffsetPlan plan = plan_offsets(blocks, kTaken);
  EXPECT_EQ(find_flaw(blocks, plan, kTaken), std::nullopt);
}

// Of random steps, what another one holds of the region.
TEST(OffsetPlanTest, TwoThousandRandomPlansLieAroundWhatIsTaken) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> others = testing::random_step(seed + 2000), blocks = testing::random_step(seed);
    const OffsetPlan before = plan_offsets(others);
    std::vector<Piece> taken;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (others[i].freed != Block::kNever) continue;
      taken.push_back({.address = before.offsets[i], .bytes = in_whole_units(others[i].bytes)});
    }
    const OffsetPlan plan = plan_offsets(blocks, taken);
    ASSERT_EQ(find_flaw(blocks, plan, taken), std::nullopt) << "step " << seed;
    ASSERT_GE(plan.bytes, plan.bound) << "step " << seed;
  }
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
