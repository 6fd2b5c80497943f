#include <pianola/memory/region_space.hpp>

#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>
#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <vector>

namespace pianola::memory::region_space_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MATCHER_P2(IsPiece, address, bytes, "") {
  return arg.address == std::uint64_t{address} && arg.bytes == std::uint64_t{bytes};
}

TEST(RegionSpaceTest, GrowsBehindItsEnd) {
  RegionSpace space;
  EXPECT_FALSE(space.take({.address = 0, .bytes = 512}));
  space.grow_to(1024);
  EXPECT_TRUE(space.take({.address = 512, .bytes = 512}));
  EXPECT_FALSE(space.take({.address = 512, .bytes = 512})) << "a block has it";
  EXPECT_FALSE(space.take({.address = 0, .bytes = 1024}));
  space.grow_to(512);
  EXPECT_EQ(space.bytes(), 1024U);
  space.grow_to(2048);
  EXPECT_THAT(space.free_pieces(), ElementsAre(IsPiece(0U, 512U), IsPiece(1024U, 1024U)));
  EXPECT_THAT(space.taken(), ElementsAre(IsPiece(512U, 512U)));
  space.give_back(512);
  space.give_back(512);
  EXPECT_THAT(space.free_pieces(), ElementsAre(IsPiece(0U, 2048U)));
  EXPECT_THAT(space.taken(), IsEmpty());
}

TEST(RegionSpaceTest, ABlockOverTheOldEndIsOnePiece) {
  RegionSpace space;
  space.grow_to(1024);
  space.grow_to(2048);
  EXPECT_TRUE(space.take({.address = 512, .bytes = 1024}));
}

TEST(RegionSpaceTest, RegionsGrowBySegmentsOfTheirOwn) {
  constexpr std::uint64_t kMiB = 1U << 20U;
  EXPECT_EQ(grown_region(0, 1), 10 * kMiB);
  EXPECT_EQ(grown_region(10 * kMiB, 10 * kMiB), 10 * kMiB);
  EXPECT_EQ(grown_region(10 * kMiB, 10 * kMiB + 1), 20 * kMiB);
  EXPECT_EQ(grown_region(10 * kMiB, 21 * kMiB), 22 * kMiB);
}

std::uint64_t end_of(const std::vector<Piece>& pieces) {
  std::uint64_t end = 0;
  for (const Piece& piece : pieces) end = std::max(end, piece.address + piece.bytes);
  return end;
}

// What steps leave behind goes at random times. Each next plan lies around what is left, and the region grows to what it needs.
TEST(RegionSpaceTest, StepsLieAroundWhatIsHeldOfOthers) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    RegionSpace space;
    for (std::uint32_t step = 0; step < 8; ++step) {
      const std::vector<Block> blocks =
          step % 2 == 0 ? testing::random_step(8 * seed + step) : testing::TrainingStep(8 * seed + step).blocks();
      const std::vector<Piece> taken = space.taken();
      const OffsetPlan plan = plan_offsets(blocks, taken);
      ASSERT_EQ(find_flaw(blocks, plan, taken), std::nullopt) << "step " << step << " of " << seed;
      ASSERT_GE(plan.bytes, plan.bound);
      space.grow_to(plan.bytes);
      ASSERT_GE(space.bytes(), end_of(taken));
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].freed != Block::kNever) continue;
        EXPECT_TRUE(space.take({.address = plan.offsets[i], .bytes = in_whole_units(blocks[i].bytes)}));
      }
      for (const Piece& piece : space.taken()) {
        if (random() % 2 == 0) space.give_back(piece.address);
      }
    }
  }
}

// 16 lengths of one step, each of which leaves a number behind: what the last one planned is little more than the largest takes alone.
TEST(RegionSpaceTest, BucketsInAnyOrderTakeLittleMoreThanTheLargest) {
  const auto of_length = [](std::uint64_t length) {
    std::vector<Block> blocks = testing::TrainingStep(3).blocks();
    for (Block& block : blocks) {
      if (block.freed == Block::kNever) block.freed = 1 << 30;
      block.bytes = block.bytes / 16 * length;
    }
    blocks.push_back({.made = blocks.back().made / 2, .bytes = 4});
    std::ranges::stable_sort(blocks, {}, &Block::made);
    return blocks;
  };
  const std::uint64_t alone = plan_offsets(of_length(16)).bytes;
  std::vector<std::uint64_t> lengths;
  for (std::uint64_t length = 1; length <= 16; ++length) lengths.push_back(length);
  const auto region_of = [&] {
    RegionSpace space;
    for (const std::uint64_t length : lengths) {
      const std::vector<Block> blocks = of_length(length);
      const OffsetPlan plan = plan_offsets(blocks, space.taken());
      space.grow_to(plan.bytes);
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].freed != Block::kNever) continue;
        EXPECT_TRUE(space.take({.address = plan.offsets[i], .bytes = 512}));
      }
    }
    return static_cast<double>(space.bytes());
  };
  const double most = 1.02 * static_cast<double>(alone) + 16 * 512;
  EXPECT_LE(region_of(), most) << "ascending";
  std::ranges::reverse(lengths);
  EXPECT_LE(region_of(), most) << "descending";
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    std::ranges::shuffle(lengths, std::mt19937(seed));
    EXPECT_LE(region_of(), most) << "shuffled by " << seed;
  }
}

}  // namespace
}  // namespace pianola::memory::region_space_test
