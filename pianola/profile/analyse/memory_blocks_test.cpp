#include <pianola/profile/analyse/memory_blocks.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace pianola::profiling::memory_blocks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::tuple<Nanoseconds, Nanoseconds, std::uint64_t>> fields(std::span<const MemoryBlock> blocks) {
  std::vector<std::tuple<Nanoseconds, Nanoseconds, std::uint64_t>> all;
  for (const MemoryBlock& block : blocks) all.emplace_back(block.made, block.freed, block.bytes);
  return all;
}

TEST(MemoryBlocksTest, ABlockLivesUntilItsAddressIsFreed) {
  TimelineBuilder t;
  t.allocates(1, 100, 10).allocates(2, 30, 20).frees(1, 100, 40).allocates(1, 50, 60);
  EXPECT_THAT(fields(memory_blocks(t.build(), 0, 0)),
              ElementsAre(std::tuple(us(10), us(40), 100), std::tuple(us(20), MemoryBlock::kNever, 30),
                          std::tuple(us(60), MemoryBlock::kNever, 50)));
}

TEST(MemoryBlocksTest, WhatWasThereBeforeTheProfileIsNoBlockOfIt) {
  TimelineBuilder t;
  EXPECT_THAT(memory_blocks(t.frees(9, 100, 5).build(), 0, 0), IsEmpty());
}

TEST(MemoryBlocksTest, AnAddressThatIsHandedOutAgainHasBeenFreed) {
  TimelineBuilder t;
  t.allocates(1, 100, 10).allocates(1, 70, 30);
  EXPECT_THAT(fields(memory_blocks(t.build(), 0, 0)),
              ElementsAre(std::tuple(us(10), us(30), 100), std::tuple(us(30), MemoryBlock::kNever, 70)));
}

TEST(MemoryBlocksTest, DevicesAndProcessesAreKeptApart) {
  TimelineBuilder t;
  t.allocates(1, 100, 10).on_device(1).allocates(1, 20, 11).on_device(0).in_process(1).frees(1, 100, 12);
  const Timeline timeline = t.build();
  EXPECT_THAT(fields(memory_blocks(timeline, 0, 0)), ElementsAre(std::tuple(us(10), MemoryBlock::kNever, 100)));
  EXPECT_THAT(fields(memory_blocks(timeline, 0, 1)), ElementsAre(std::tuple(us(11), MemoryBlock::kNever, 20)));
  EXPECT_THAT(memory_blocks(timeline, 1, 0), IsEmpty());
}

TEST(MemoryBlocksTest, ThePeakIsTheMostAtATime) {
  TimelineBuilder t;
  t.allocates(1, 100, 10).allocates(2, 30, 20).frees(1, 100, 40).allocates(3, 90, 50).frees(3, 90, 55);
  const std::vector<MemoryBlock> blocks = memory_blocks(t.build(), 0, 0);
  EXPECT_EQ(peak_bytes(blocks), 130U);
  EXPECT_EQ(peak_bytes(made_within(blocks, {us(20), us(60)})), 120U) << "without the first, which is older";
}

TEST(MemoryBlocksTest, ABlockMayComeAndGoWhileTheClockStandsStill) {
  TimelineBuilder t;
  t.allocates(1, 5, 10).allocates(2, 100, 10).frees(2, 100, 10);
  EXPECT_EQ(peak_bytes(memory_blocks(t.build(), 0, 0)), 105U);
}

TEST(MemoryBlocksTest, WhereIterationsBeginWithALaunchTheirMemoryBeginsAfterTheLaunchBefore) {
  TimelineBuilder t;
  t.kernel("a", 10, 5).launched(4, 3).kernel("b", 30, 5).launched(24, 3).kernel("c", 50, 5).launched(44, 3);
  const Timeline timeline = t.build();
  Analysis analysis;
  analysis.iterations.resize(2);
  analysis.iterations[0].host = {us(4), us(24)};
  analysis.iterations[1].host = {us(24), us(44)};
  analysis.by = IterationsBy::repetition;
  EXPECT_THAT(allocation_spans(timeline, analysis), ElementsAre(TimeSpan{us(4), us(7)}, TimeSpan{us(7), us(27)}));
  analysis.by = IterationsBy::range;
  EXPECT_THAT(allocation_spans(timeline, analysis), ElementsAre(TimeSpan{us(4), us(24)}, TimeSpan{us(24), us(44)}));
}

}  // namespace
}  // namespace pianola::profiling::memory_blocks_test
