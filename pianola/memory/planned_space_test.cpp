#include <pianola/memory/planned_space.hpp>

#include <pianola/memory/plan_proof.hpp>
#include <pianola/memory/testing/random_steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace pianola::memory::planned_space_test {
namespace {

using ::testing::Optional;

// Each operation makes four blocks.
StepRun run_of(const std::vector<Block>& blocks) {
  static const std::vector<char> kinds(7);
  StepRun run{.blocks = blocks, .made_in = {}, .streams = {}, .operations = {}};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    run.made_in.push_back(static_cast<std::int32_t>(i / 4));
    if (i % 4 == 0) run.operations.push_back(&kinds[i * i / 16 % kinds.size()]);
  }
  return run;
}

std::optional<std::uint64_t> offset_of(const std::optional<PlannedSpace::Place>& place) {
  return place ? std::optional(place->offset) : std::nullopt;
}

// A run in a region of its own.
class Laid {
 public:
  explicit Laid(const std::vector<Block>& blocks) : Laid(blocks, plan_offsets(blocks)) {}
  [[nodiscard]] RegionSpace& region() { return region_; }
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes) { return offset_of(space_.take(bytes)); }
  void begin_operation(const void* operation) { space_.begin_operation(operation); }
  void give_back(std::uint64_t offset) { region_.give_back(offset); }
  [[nodiscard]] std::uint64_t bytes() const { return region_.bytes(); }
  [[nodiscard]] std::size_t refused() const { return space_.refused(); }

 private:
  Laid(const std::vector<Block>& blocks, const OffsetPlan& plan) : space_(run_of(blocks), plan, region_) {
    region_.grow_to(plan.bytes);
    if (blocks.size() <= 4 && !blocks.empty()) space_.begin_operation(run_of(blocks).operations.front());
  }
  RegionSpace region_;
  PlannedSpace space_;
};

// What a run asks for and frees, in order: the number of a block, and whether it is freed.
using Events = std::vector<std::pair<std::size_t, bool>>;

Events events_of(const std::vector<Block>& blocks) {
  std::vector<std::pair<std::pair<Moment, bool>, std::size_t>> moments;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    moments.push_back({{blocks[i].made, true}, i});
    if (blocks[i].freed != Block::kNever) moments.push_back({{blocks[i].freed, false}, i});
  }
  std::ranges::sort(moments);  // what is freed at a moment is freed before what is made then
  Events events;
  for (const auto& [moment, block] : moments) events.emplace_back(block, !moment.second);
  return events;
}

// Runs a step, and checks at each block that no living one has a byte of it. @return  Blocks that got a place.
std::size_t run(Laid& space, const std::vector<Block>& blocks, const Events& events,
                const std::vector<std::size_t>& numbers, const StepRun& planned) {
  std::int32_t operation = -1;
  std::map<std::size_t, std::uint64_t> places;
  std::size_t placed = 0;
  for (const auto& [block, is_freed] : events) {
    if (is_freed) {
      if (const auto place = places.extract(block)) space.give_back(place.mapped());
      continue;
    }
    if (const std::int32_t now = planned.made_in[numbers[block]]; now != operation && blocks.size() > 4) {
      space.begin_operation(planned.operations[static_cast<std::size_t>(operation = now)]);
    }
    const std::optional<std::uint64_t> offset = space.take(blocks[block].bytes);
    if (!offset) continue;
    ++placed;
    const std::uint64_t end = *offset + in_whole_units(blocks[block].bytes);
    EXPECT_LE(end, space.bytes());
    for (const auto& [other, begin] : places) {
      EXPECT_TRUE(end <= begin || begin + in_whole_units(blocks[other].bytes) <= *offset) << other << " and " << block;
    }
    places.emplace(block, *offset);
  }
  return placed;
}

TEST(PlannedSpaceTest, EachBlockOfTheSameStepLiesWhereThePlanPutsIt) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const std::vector<Block> blocks = testing::random_step(seed);
    Laid space(blocks);
    std::vector<std::size_t> numbers(blocks.size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    EXPECT_EQ(run(space, blocks, events_of(blocks), numbers, run_of(blocks)), blocks.size()) << seed;
    EXPECT_EQ(space.refused(), 0U);
  }
}

TEST(PlannedSpaceTest, ABlockThatThePlanDoesNotKnowGetsNoPlace) {
  Laid space({{.made = 0, .freed = 1, .bytes = 512}, {.made = 1, .bytes = 2048}});
  EXPECT_EQ(space.take(1024), std::nullopt);
  EXPECT_THAT(space.take(512), Optional(0U));
  EXPECT_EQ(space.refused(), 1U);
}

TEST(PlannedSpaceTest, ABlockThatIsFreedLaterKeepsItsPlace) {
  Laid space({{.made = 0, .freed = 1, .bytes = 512}, {.made = 2, .freed = 3, .bytes = 512}});
  ASSERT_EQ(space.bytes(), 512U);
  EXPECT_THAT(space.take(512), Optional(0U));
  EXPECT_EQ(space.take(512), std::nullopt) << "the first one lives";
  space.give_back(0);
}

TEST(PlannedSpaceTest, MissingBlocksOfAnOperationAreSkipped) {
  Laid space({{.made = 0, .bytes = 512}, {.made = 1, .bytes = 1024}, {.made = 2, .bytes = 4096}});
  EXPECT_TRUE(space.take(4096).has_value());
  EXPECT_EQ(space.take(512), std::nullopt) << "it comes before";
}

// The run frees some blocks later or never, leaves others out, and asks for new ones.
TEST(PlannedSpaceTest, ARunThatDiffersNeverGetsBytesOfALivingBlock) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Block> planned =
        seed % 2 == 0 ? testing::random_step(seed) : testing::TrainingStep(seed).blocks();
    std::vector<Block> blocks;
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < planned.size(); ++i) {
      Block block = planned[i];
      if (random() % 20 == 0) continue;
      if (block.freed != Block::kNever) block.freed += static_cast<Moment>(random() % 5);
      if (random() % 30 == 0) block.freed = Block::kNever;
      if (random() % 30 == 0) block.bytes += 512U * (random() % 3);
      blocks.push_back(block);
      numbers.push_back(i);
    }
    Laid space(planned);
    const std::size_t placed = run(space, blocks, events_of(blocks), numbers, run_of(planned));
    EXPECT_EQ(placed + space.refused(), blocks.size());
  }
}

TEST(PlannedSpaceTest, APlaceBehindTheEndOfTheRegionIsNotHandedOut) {
  const std::vector<Block> blocks = {{.made = 0, .bytes = 512}, {.made = 1, .bytes = 2048}};
  const StepRun planned = run_of(blocks);
  RegionSpace region;
  region.grow_to(512);
  PlannedSpace space(planned, {.offsets = {0, 512}, .bytes = 2560, .bound = 2560}, region);
  space.begin_operation(planned.operations.front());
  EXPECT_THAT(offset_of(space.take(512)), Optional(0U));
  EXPECT_EQ(offset_of(space.take(2048)), std::nullopt);
  EXPECT_EQ(space.refused(), 1U);
}

TEST(PlannedSpaceTest, WhatIsNeverFreedLiesInTheSecondRegion) {
  const std::vector<Block> blocks = {
      {.made = 0, .bytes = 512}, {.made = 1, .freed = 9, .bytes = 512}, {.made = 2, .bytes = 1024}};
  const StepRun planned = run_of(blocks);
  const ApartPlan plan = plan_apart(blocks, {});
  RegionSpace scratch, kept;
  scratch.grow_to(plan.scratch_bytes);
  kept.grow_to(plan.kept_bytes);
  PlannedSpace space(planned, plan, scratch, kept);
  space.begin_operation(planned.operations.front());
  for (const Block& block : blocks) {
    const auto place = space.take(block.bytes);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->is_kept, block.freed == Block::kNever);
  }
  EXPECT_EQ(scratch.taken().size(), 1U);
  EXPECT_EQ(kept.taken().size(), 2U);
}

TEST(PlannedSpaceTest, AnEmptyPlanHasNoPlace) {
  Laid space{std::vector<Block>()};
  EXPECT_EQ(space.take(1), std::nullopt);
  space.give_back(0);
}

}  // namespace
}  // namespace pianola::memory::planned_space_test
