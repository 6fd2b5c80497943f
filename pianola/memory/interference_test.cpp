#include <pianola/memory/interference.hpp>

#include <pianola/memory/apart_plan.hpp>
#include <pianola/memory/offset_plan.hpp>
#include <pianola/memory/plan_proof.hpp>
#include <pianola/memory/step_run.hpp>
#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace pianola::memory::interference_test {
namespace {

using ::testing::HasSubstr;

// Of blocks whose lives do not meet, one pair in so many.
Interference random_interference(const std::vector<Block>& blocks, std::uint32_t seed, std::uint32_t one_in) {
  std::mt19937 random(seed);
  Interference interference(blocks.size());
  for (std::size_t one = 0; one < blocks.size(); ++one) {
    for (std::size_t other = 0; other < one; ++other) {
      if (!lives_meet(blocks[one], blocks[other]) && random() % one_in == 0) interference.add(one, other);
    }
  }
  return interference;
}

// By trying all sets.
std::uint64_t heaviest_clique(const std::vector<Block>& blocks, const Interference& interference) {
  std::uint64_t most = 0;
  for (std::uint32_t set = 0; set < 1U << blocks.size(); ++set) {
    std::uint64_t bytes = 0;
    bool is_clique = true;
    for (std::size_t one = 0; one < blocks.size(); ++one) {
      if ((set >> one & 1U) == 0) continue;
      bytes += in_whole_units(blocks[one].bytes);
      for (std::size_t other = 0; other < one; ++other) {
        if ((set >> other & 1U) == 0) continue;
        is_clique = is_clique && (lives_meet(blocks[one], blocks[other]) || interference.has(one, other));
      }
    }
    if (is_clique) most = std::max(most, bytes);
  }
  return most;
}

TEST(InterferenceTest, KnowsPairsBothWays) {
  Interference interference(100);
  EXPECT_TRUE(interference.empty());
  interference.add(3, 70);
  EXPECT_TRUE(interference.has(3, 70));
  EXPECT_TRUE(interference.has(70, 3));
  EXPECT_FALSE(interference.has(3, 71));
  EXPECT_EQ(interference.pairs(), 1U);
  EXPECT_FALSE(Interference().has(3, 70));
}

TEST(InterferenceTest, OfSomeBlocksIsNumberedAnew) {
  Interference interference(5);
  interference.add(1, 4);
  interference.add(0, 2);
  const std::vector<std::size_t> some = {4, 3, 1};
  const Interference among = interference.among(some);
  EXPECT_TRUE(among.has(0, 2));
  EXPECT_EQ(among.pairs(), 1U);
}

TEST(InterferenceTest, BlocksOfOneLifeAfterTheOtherLieSideBySideIfTheyInterfere) {
  const std::vector<Block> blocks = {{.made = 0, .freed = 1, .bytes = 512}, {.made = 1, .freed = 2, .bytes = 512}};
  Interference interference(2);
  EXPECT_EQ(plan_offsets(blocks, interference).bytes, 512U);
  interference.add(0, 1);
  const OffsetPlan plan = plan_offsets(blocks, interference);
  EXPECT_EQ(plan.bytes, 1024U);
  EXPECT_EQ(plan.bound, 1024U);
}

TEST(InterferenceTest, ThePlansOfTwoThousandRandomStepsKeepInterferingBlocksApart) {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    const Interference interference = random_interference(blocks, seed, 1 + seed % 20);
    const OffsetPlan plan = plan_offsets(blocks, interference);
    ASSERT_EQ(find_flaw(blocks, plan, {}, interference), std::nullopt) << "step " << seed;
    ASSERT_GE(plan.bytes, plan.bound) << "step " << seed;
  }
}

TEST(InterferenceTest, SoDoThoseAroundWhatIsTakenAndWithResultsApart) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    const Interference interference = random_interference(blocks, seed, 4);
    const std::vector<Piece> taken = {{.address = 512 * (seed % 7), .bytes = 1024}};
    const OffsetPlan plan = plan_offsets(blocks, taken, interference);
    ASSERT_EQ(find_flaw(blocks, plan, taken, interference), std::nullopt) << "step " << seed;

    const ApartPlan apart = plan_apart(blocks, {.of_scratch = taken, .of_kept = {}}, interference);
    std::vector<std::size_t> scratch;
    std::vector<Block> lives;
    OffsetPlan of_scratch{.offsets = {}, .bytes = apart.scratch_bytes, .bound = 0};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].freed == Block::kNever) continue;
      scratch.push_back(i);
      lives.push_back(blocks[i]);
      of_scratch.offsets.push_back(apart.offsets[i]);
    }
    ASSERT_EQ(find_flaw(lives, of_scratch, taken, interference.among(scratch)), std::nullopt) << "step " << seed;
  }
}

// A plan that knows nothing of the lanes, as it is: each pair of bytes in common is found.
TEST(InterferenceTest, AnOverlapOnPurposeIsFound) {
  std::size_t found = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    const OffsetPlan plan = plan_offsets(blocks);
    Interference interference(blocks.size());
    for (std::size_t one = 1; one < blocks.size() && interference.empty(); ++one) {
      for (std::size_t other = 0; other < one && interference.empty(); ++other) {
        if (plan.offsets[one] == plan.offsets[other]) interference.add(one, other);
      }
    }
    if (interference.empty()) continue;
    const auto flaw = find_flaw(blocks, plan, {}, interference);
    ASSERT_TRUE(flaw.has_value()) << "step " << seed;
    EXPECT_THAT(*flaw, HasSubstr("have bytes in common, and may be in use at once"));
    ++found;
  }
  EXPECT_GT(found, 100U);
}

TEST(InterferenceTest, TheBoundIsThatOfAHeaviestSetAsFarAsItIsFound) {
  std::size_t exact = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<Block> blocks = testing::random_step(seed);
    blocks.resize(std::min<std::size_t>(blocks.size(), 12));
    const Interference interference = random_interference(blocks, seed, 2);
    const std::uint64_t least = least_bytes(blocks, interference), heaviest = heaviest_clique(blocks, interference);
    ASSERT_LE(least, heaviest) << "step " << seed;
    exact += least == heaviest ? 1 : 0;
    if (interference.empty()) {
      ASSERT_EQ(least, heaviest) << "step " << seed;
    }
  }
  EXPECT_GT(exact, 150U);
}

TEST(InterferenceTest, GoesWithTheBlocksOfTheMainStream) {
  StepRun run{.blocks = {{.made = 0, .freed = 1, .bytes = 4096},
                         {.made = 1, .freed = 2, .bytes = 512},
                         {.made = 2, .freed = 3, .bytes = 4096}},
              .made_in = {0, 1, 2},
              .streams = {7, 8, 7},
              .operations = {},
              .interference = Interference(3)};
  run.interference.add(0, 2);
  const auto [main, others] = by_main_stream(run);
  EXPECT_TRUE(main.interference.has(0, 1));
  EXPECT_TRUE(others.interference.empty());
}

TEST(InterferenceTest, OfTheMainStreamIsNotedInTheWholeRun) {
  StepRun run{.blocks = {{.made = 0, .freed = 1, .bytes = 512},
                         {.made = 1, .freed = 2, .bytes = 4096},
                         {.made = 2, .freed = 3, .bytes = 4096},
                         {.made = 3, .freed = 4, .bytes = 4096}},
              .made_in = {0, 1, 2, 3},
              .streams = {8, 7, 8, 7},
              .operations = {}};
  StepRun main = by_main_stream(run, /*captured=*/8).first;
  main.interference = Interference(2);
  main.interference.add(0, 1);
  keep_apart_on_main_stream(run, main);
  EXPECT_EQ(run.main, 8U);
  EXPECT_TRUE(run.interference.has(0, 2));
  EXPECT_EQ(run.interference.pairs(), 1U);
  EXPECT_TRUE(by_main_stream(run).first.interference.has(0, 1));
  EXPECT_EQ(by_main_stream(run).second.streams.size(), 2U);
}

// More work than all orders may take together; without interference an allocator's pass over time does without it.
TEST(InterferenceTest, ThereIsAPlanHoweverMuchIsTaken) {
  std::vector<Block> blocks;
  for (Moment i = 0; i < 2'000; ++i) blocks.push_back({.made = i, .freed = i + 1, .bytes = 1024});
  std::vector<Piece> taken;
  for (std::uint64_t i = 0; i < 210'000; ++i) taken.push_back({.address = 1024 * i, .bytes = 512});
  Interference interference(blocks.size());
  interference.add(0, 7);
  const OffsetPlan plan = plan_offsets(blocks, taken, interference);
  ASSERT_EQ(plan.offsets.size(), blocks.size());
  EXPECT_NE(plan.offsets[0], plan.offsets[7]);
  EXPECT_EQ(plan.offsets[0], plan.offsets[1]);
}

}  // namespace
}  // namespace pianola::memory::interference_test
