#include <pianola/memory/plan_proof.hpp>

#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

namespace pianola::memory::plan_proof_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

const std::vector<Block> kTwo = {{.made = 0, .freed = 4, .bytes = 1000}, {.made = 2, .freed = 6, .bytes = 512}};

TEST(PlanProofTest, APlanWithoutOverlapIsProved) {
  EXPECT_EQ(find_flaw(kTwo, {.offsets = {0, 1024}, .bytes = 1536, .bound = 1536}), std::nullopt);
  EXPECT_EQ(find_flaw({}, {}), std::nullopt);
}

TEST(PlanProofTest, TwoBlocksThatLiveAtOnceAndHaveBytesInCommonAreNamed) {
  EXPECT_THAT(find_flaw(kTwo, {.offsets = {0, 512}, .bytes = 1536, .bound = 1536}),
              Optional(HasSubstr("block 0 (bytes 0 to 1024, alive from 0 to 4) and block 1 (bytes 512 to 1024, alive "
                                 "from 2 to 6) have bytes in common")));
}

TEST(PlanProofTest, ABlockInBytesThatAreTakenIsNamed) {
  const OffsetPlan plan = {.offsets = {0, 2048}, .bytes = 2560, .bound = 1536};
  const auto with = [&](Piece taken) { return find_flaw(kTwo, plan, std::vector<Piece>{taken}); };
  EXPECT_EQ(with({.address = 1024, .bytes = 1024}), std::nullopt);
  EXPECT_EQ(with({.address = 2560, .bytes = 512}), std::nullopt);
  EXPECT_EQ(with({.address = 512, .bytes = 0}), std::nullopt);
  EXPECT_THAT(with({.address = 512, .bytes = 1024}),
              Optional(HasSubstr("block 0 (bytes 0 to 1024, alive from 0 to 4) "
                                 "has some of bytes 512 to 1536, which are taken")));
  EXPECT_THAT(with({.address = 2048, .bytes = 512}), Optional(HasSubstr("block 1")));
  EXPECT_THAT(with({.address = 0, .bytes = 4096}), Optional(HasSubstr("block 0")));
}

TEST(PlanProofTest, ABlockOutsideOfTheRegionIsNamed) {
  EXPECT_THAT(
      find_flaw(kTwo, {.offsets = {0, 1024}, .bytes = 1024, .bound = 1536}),
      Optional(HasSubstr("block 1 (bytes 1024 to 1536, alive from 2 to 6) lies outside of the region of 1024 bytes")));
}

TEST(PlanProofTest, ABlockBetweenTwoUnitsIsNamed) {
  EXPECT_THAT(find_flaw(kTwo, {.offsets = {0, 1025}, .bytes = 4096, .bound = 1536}), Optional(HasSubstr("block 1")));
}

TEST(PlanProofTest, APlanOfOtherBlocksIsRefused) {
  EXPECT_THAT(find_flaw(kTwo, {.offsets = {0}, .bytes = 1536, .bound = 1536}),
              Optional(HasSubstr("the plan has 1 offsets for 2 blocks")));
}

bool live_at_once(const Block& one, const Block& other) { return one.made < other.freed && other.made < one.freed; }

// One block of each plan is moved on top of another one that lives at the same time.
TEST(PlanProofTest, OfTwoThousandRandomStepsEachOverlapIsFound) {
  int overlaps = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    OffsetPlan plan = plan_offsets(blocks);
    std::mt19937 random(seed);
    const std::size_t moved = random() % blocks.size();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i == moved || !live_at_once(blocks[i], blocks[moved])) continue;
      plan.offsets[moved] = plan.offsets[i];
      plan.bytes = std::max(plan.bytes, plan.offsets[i] + in_whole_units(blocks[moved].bytes));
      ASSERT_THAT(find_flaw(blocks, plan), Optional(HasSubstr("have bytes in common"))) << "step " << seed;
      ++overlaps;
      break;
    }
  }
  EXPECT_GT(overlaps, 1900);
}

// One block of each plan is moved onto bytes that are taken.
TEST(PlanProofTest, OfTwoThousandRandomStepsEachBlockInTakenBytesIsFound) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    std::mt19937 random(seed);
    std::vector<Piece> taken;
    for (std::uint64_t at = 0; taken.size() < 20; at += taken.back().bytes) {
      at += kBlockUnit * (random() % 4096);
      taken.push_back({.address = at, .bytes = kBlockUnit * (1 + random() % 64)});
    }
    OffsetPlan plan = plan_offsets(blocks, taken);
    ASSERT_EQ(find_flaw(blocks, plan, taken), std::nullopt) << "step " << seed;
    const std::size_t moved = random() % blocks.size();
    const Piece& onto = taken[random() % taken.size()];
    plan.offsets[moved] = onto.address + onto.bytes - kBlockUnit * (1 + random() % (onto.bytes / kBlockUnit));
    plan.bytes = std::max(plan.bytes, plan.offsets[moved] + in_whole_units(blocks[moved].bytes));
    ASSERT_THAT(find_flaw(blocks, plan, taken), Optional(HasSubstr("which are taken"))) << "step " << seed;
  }
}

}  // namespace
}  // namespace pianola::memory::plan_proof_test
