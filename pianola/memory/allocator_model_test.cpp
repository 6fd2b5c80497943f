#include <pianola/memory/allocator_model.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace pianola::memory::allocator_model_test {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr Moment kNever = Block::kNever;

Block block(Moment made, Moment freed, std::uint64_t bytes) { return {.made = made, .freed = freed, .bytes = bytes}; }

// Of blocks {made, freed, MiB}.
std::uint64_t pool_mib(std::vector<Block> blocks, SegmentKind kind = SegmentKind::fixed) {
  for (Block& one : blocks) one.bytes *= kMiB;
  EXPECT_EQ(pool_bytes(blocks, kind) % kMiB, 0U);
  return pool_bytes(blocks, kind) / kMiB;
}

std::uint64_t expandable_mib(std::vector<Block> blocks) { return pool_mib(std::move(blocks), SegmentKind::expandable); }

std::uint64_t pool_of_one(std::uint64_t bytes) { return pool_bytes(std::vector{block(0, kNever, bytes)}); }

TEST(AllocatorModelTest, ThePoolOfNothingIsEmpty) { EXPECT_EQ(pool_bytes({}), 0U); }

TEST(AllocatorModelTest, SegmentsAreOf2MiBOf20OrOfMultiplesOf2) {
  EXPECT_EQ(pool_of_one(1), 2 * kMiB);
  EXPECT_EQ(pool_of_one(kMiB), 2 * kMiB);
  EXPECT_EQ(pool_of_one(kMiB + 1), 20 * kMiB);
  EXPECT_EQ(pool_of_one(10 * kMiB - 512), 20 * kMiB);
  EXPECT_EQ(pool_of_one(10 * kMiB - 511), 10 * kMiB) << "in whole 512 bytes it is 10 MiB";
  EXPECT_EQ(pool_of_one(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(pool_of_one(10 * kMiB + 1), 12 * kMiB);
  EXPECT_EQ(pool_of_one(33 * kMiB), 34 * kMiB);
}

TEST(AllocatorModelTest, AFreedBlockServesALaterOneFromTheSameSegment) {
  EXPECT_EQ(pool_mib({block(0, 1, 8), block(2, 3, 6)}), 20U);
  EXPECT_EQ(pool_mib({block(0, 1, 40), block(2, 3, 30)}), 40U);
}

TEST(AllocatorModelTest, ALargerWorkspaceFindsNoRoomInTheOneThatWasFreed) {
  EXPECT_EQ(pool_mib({block(0, 1, 30), block(2, 3, 40)}), 30U + 40U);
}

TEST(AllocatorModelTest, BlocksThatAreNotFreedKeepTheirRoom) {
  EXPECT_EQ(pool_mib({block(0, kNever, 30), block(1, kNever, 30), block(2, 3, 30), block(4, kNever, 30)}), 3U * 30U);
}

TEST(AllocatorModelTest, WhatIsFreedAtTheSameTimeIsFreeAlready) {
  EXPECT_EQ(pool_mib({block(0, 5, 30), block(5, 6, 30)}), 30U);
  EXPECT_EQ(pool_mib({block(0, 6, 30), block(5, 7, 30)}), 60U);
}

// The segment is 8 free, 8 in use, 4 free: 17 MiB at a time at most, and 9 find no room in it.
TEST(AllocatorModelTest, AHoleIsTooSmallForWhatComesNext) {
  EXPECT_EQ(pool_mib({block(0, 2, 8), block(1, 9, 8), block(3, 9, 9)}), 20U + 20U);
  EXPECT_EQ(pool_mib({block(0, 2, 8), block(1, 9, 8), block(3, 9, 8)}), 20U);
}

// A segment of 6, 6, 6 and 2 that were never used; the one between is freed last.
TEST(AllocatorModelTest, FreeNeighboursAreOnePiece) {
  EXPECT_EQ(pool_mib({block(0, 3, 6), block(1, 4, 6), block(2, 3, 6), block(5, 6, 20)}), 20U);
  EXPECT_EQ(pool_mib({block(0, 3, 6), block(1, 9, 6), block(2, 3, 6), block(5, 6, 12)}), 20U + 12U) << "6 and 8 remain";
}

TEST(AllocatorModelTest, SegmentsAreNeverOnePiece) {
  EXPECT_EQ(pool_mib({block(0, 2, 10), block(1, 2, 10), block(3, 4, 20)}), 10U + 10U + 20U);
}

TEST(AllocatorModelTest, WhatASplitLeavesIsForOthers) {
  EXPECT_EQ(pool_mib({block(0, 1, 30), block(2, 9, 12), block(3, 9, 4), block(4, 9, 14)}), 30U);
}

// Of 12 MiB that are free.
TEST(AllocatorModelTest, ARestOfALargePieceThatIsNotMoreThanOneMiBIsLost) {
  const Block freed = block(0, 1, 12 * kMiB), next = block(3, 9, kMiB + 512);
  EXPECT_EQ(pool_bytes(std::vector{freed, block(2, 9, 11 * kMiB - 512), next}), 12 * kMiB);
  EXPECT_EQ(pool_bytes(std::vector{freed, block(2, 9, 11 * kMiB), next}), (12 + 20) * kMiB);
}

// Of 12 and 18 MiB the 12 are freed and 11 take their place, then the 18 are freed: they are not 19.
TEST(AllocatorModelTest, ALostRestIsNotJoinedByWhatIsFreedBesideIt) {
  EXPECT_EQ(pool_mib({block(0, 1, 30), block(2, 4, 12), block(3, 6, 18), block(5, 9, 11), block(7, 9, 19)}), 30U + 20U);
  EXPECT_EQ(pool_mib({block(0, 1, 30), block(2, 4, 12), block(3, 6, 18), block(5, 9, 10), block(7, 9, 19)}), 30U);
}

TEST(AllocatorModelTest, ALostRestComesBackWithItsPiece) {
  EXPECT_EQ(pool_mib({block(0, 1, 12), block(2, 3, 11), block(4, 5, 12)}), 12U);
}

TEST(AllocatorModelTest, ARestOfASmallPieceIsNotLost) {
  EXPECT_EQ(pool_bytes(std::vector{block(0, 9, kMiB), block(1, 9, kMiB - 512), block(2, 9, 1)}), 2 * kMiB);
  EXPECT_EQ(pool_bytes(std::vector{block(0, 9, kMiB), block(1, 9, kMiB - 511), block(2, 9, 1)}), 4 * kMiB);
}

TEST(AllocatorModelTest, SmallBlocksNeverComeFromSegmentsOfLargeOnes) {
  EXPECT_EQ(pool_mib({block(0, 1, 8), block(2, 9, 1)}), 20U + 2U);
  EXPECT_EQ(pool_mib({block(0, 1, 1), block(2, 9, 2)}), 2U + 20U) << "nor large ones from those of small ones";
}

// First come, first served would break up the 30, and take 30 anew.
TEST(AllocatorModelTest, TheSmallestPieceThatHoldsABlockIsTaken) {
  EXPECT_EQ(pool_mib({block(0, 2, 30), block(1, 2, 14), block(3, 9, 14), block(4, 9, 30)}), 30U + 14U);
}

// Two segments of 8, 8 and 4. The first block of each is freed, one of the two is taken again, then the other block of
// the second segment goes: now 20 are free there.
TEST(AllocatorModelTest, OfPiecesOfOneSizeTheOneOfTheLowestAddressIsTaken) {
  EXPECT_EQ(
      pool_mib({block(0, 4, 8), block(1, 99, 8), block(2, 4, 8), block(3, 6, 8), block(5, 99, 8), block(7, 99, 20)}),
      20U + 20U);
}

TEST(AllocatorModelTest, AnExpandableSegmentHasWholePagesOf2MiBOr20) {
  EXPECT_EQ(expandable_mib({block(0, kNever, 1)}), 2U);
  EXPECT_EQ(expandable_mib({block(0, kNever, 2)}), 20U);
  EXPECT_EQ(expandable_mib({block(0, kNever, 10)}), 20U) << "no segment of its own";
  EXPECT_EQ(expandable_mib({block(0, kNever, 33)}), 40U);
  EXPECT_EQ(expandable_mib({block(0, kNever, 175)}), 180U);
  EXPECT_EQ(expandable_mib({block(0, kNever, 1), block(1, kNever, 10)}), 2U + 20U);
}

TEST(AllocatorModelTest, AnExpandableSegmentGrowsByWhatIsMissingBehindItsLastPiece) {
  EXPECT_EQ(expandable_mib({block(0, 9, 32), block(1, 9, 32)}), 80U) << "the second has 8 of the first one's 40";
  EXPECT_EQ(expandable_mib({block(0, 1, 30), block(2, 3, 40)}), 40U) << "the freed 30 grow";
  EXPECT_EQ(expandable_mib({block(0, 9, 4), block(1, 9, 8), block(2, 9, 12), block(3, 9, 16)}), 40U);
}

// 10 free, 10 in use, and the page is full: 15 find no room before what is in use.
TEST(AllocatorModelTest, AHoleOfAnExpandableSegmentDoesNotGrow) {
  EXPECT_EQ(expandable_mib({block(0, 2, 10), block(1, 9, 10), block(3, 9, 15)}), 20U + 20U);
  EXPECT_EQ(expandable_mib({block(0, 2, 10), block(1, 9, 10), block(3, 9, 10)}), 20U);
}

// 30 free, 2 in use, 8 free at the end. The 7 lie in the 30, which are too small for 28 then.
TEST(AllocatorModelTest, WhatAnExpandableSegmentCanGrowIsTakenLast) {
  EXPECT_EQ(expandable_mib({block(0, 4, 30), block(1, 9, 2), block(5, 9, 7), block(6, 9, 23)}), 40U);
  EXPECT_EQ(expandable_mib({block(0, 4, 30), block(1, 9, 2), block(5, 9, 7), block(6, 9, 28)}), 60U);
}

// Of 40 MiB the first 12 are freed and 11 take their place, then the 18 beside them are freed: they are 19.
TEST(AllocatorModelTest, ARestOfAnExpandableSegmentIsNotLost) {
  const std::vector<Block> blocks = {block(0, 1, 40),  block(2, 4, 12), block(3, 6, 18),
                                     block(3, 99, 10), block(5, 9, 11), block(7, 9, 19)};
  EXPECT_EQ(expandable_mib(blocks), 40U);
  EXPECT_EQ(pool_mib(blocks), 40U + 20U);
}

std::uint64_t mib_with(const AllocatorSettings& settings, std::vector<Block> blocks) {
  for (Block& one : blocks) one.bytes *= kMiB;
  return pool_bytes(blocks, settings) / kMiB;
}

AllocatorSettings rounding_to(std::uint64_t divisions) {
  AllocatorSettings settings;
  settings.roundup_divisions.fill(divisions);
  return settings;
}

TEST(AllocatorModelTest, RequestsAreRoundedUpToADivisionOfAPowerOfTwo) {
  const AllocatorSettings four = rounding_to(4);
  EXPECT_EQ(rounded_request(0, four), 512U);
  EXPECT_EQ(rounded_request(1200, four), 1536U) << "up to four units in whole units";
  EXPECT_EQ(rounded_request(2049, four), 2048U + 512);
  EXPECT_EQ(rounded_request(kMiB - 1000, four), kMiB);
  EXPECT_EQ(rounded_request(kMiB, four), kMiB);
  EXPECT_EQ(rounded_request(kMiB + 1, four), kMiB + kMiB / 4);
  EXPECT_EQ(rounded_request(1200 * kMiB, four), 1280 * kMiB);
  EXPECT_EQ(rounded_request(33 * kMiB, rounding_to(1)), 33 * kMiB);
  EXPECT_EQ(mib_with(four, {block(0, kNever, 33)}), 40U);
  EXPECT_EQ(mib_with(four, {block(0, 1, 33), block(2, 3, 39)}), 40U) << "they find each other's pieces";
  EXPECT_EQ(mib_with({}, {block(0, 1, 33), block(2, 3, 39)}), 34U + 40U);
}

TEST(AllocatorModelTest, EachRangeOfSizesHasDivisionsOfItsOwn) {
  AllocatorSettings settings;
  settings.roundup_divisions = {8, 0, 4, 0, 0, 2};
  settings.roundup_divisions.back() = 2;
  EXPECT_EQ(rounded_request(1025, settings), 1536U) << "below eight units";
  EXPECT_EQ(rounded_request(kMiB + 1, settings), kMiB + kMiB / 8);
  EXPECT_EQ(rounded_request(2 * kMiB + 1, settings), 2 * kMiB + 512);
  EXPECT_EQ(rounded_request(4 * kMiB + 1, settings), 5 * kMiB);
  EXPECT_EQ(rounded_request(33 * kMiB, settings), 48 * kMiB);
  EXPECT_EQ(rounded_request(100 * 1024 * kMiB, settings), 128 * 1024 * kMiB) << "the last one has all larger ones";
}

TEST(AllocatorModelTest, LargePiecesAreNotSplitAndServeLargeRequestsAlone) {
  const AllocatorSettings settings{.max_split = 32 * kMiB};
  EXPECT_EQ(mib_with(settings, {block(0, 1, 40), block(2, 9, 8)}), 40U + 20U);
  EXPECT_EQ(mib_with({}, {block(0, 1, 40), block(2, 9, 8)}), 40U);
  EXPECT_EQ(mib_with(settings, {block(0, 1, 30), block(2, 9, 8), block(3, 9, 12)}), 30U) << "smaller ones are split";
  EXPECT_EQ(mib_with(settings, {block(0, 1, 54), block(2, 9, 36), block(3, 9, 10)}), 54U + 10U) << "taken as a whole";
  EXPECT_EQ(mib_with({}, {block(0, 1, 54), block(2, 9, 36), block(3, 9, 10)}), 54U);
  EXPECT_EQ(mib_with(settings, {block(0, 1, 56), block(2, 9, 36)}), 56U + 36U) << "20 more are too many";
  const AllocatorSettings generous{.max_split = 32 * kMiB, .max_non_split_rounding = 30 * kMiB};
  EXPECT_EQ(mib_with(generous, {block(0, 1, 56), block(2, 9, 36)}), 56U);
}

// 40 free, 2 in use, 18 free at the end.
TEST(AllocatorModelTest, LargePiecesOfAnExpandableSegmentServeLargeRequestsAlone) {
  const AllocatorSettings settings{.kind = SegmentKind::expandable, .max_split = 32 * kMiB};
  const std::vector<Block> blocks = {block(0, 2, 40), block(1, 9, 2), block(3, 9, 8), block(4, 9, 30)};
  EXPECT_EQ(mib_with(settings, blocks), 60U + 20U);
  EXPECT_EQ(expandable_mib(blocks), 60U);
  EXPECT_EQ(mib_with(settings, {block(0, 2, 40), block(1, 9, 2), block(3, 9, 33), block(4, 9, 7)}), 60U)
      << "it is split all the same";
}

TEST(AllocatorModelTest, SegmentsOfSeveralBlocksAreAsLargeAsAsked) {
  EXPECT_EQ(mib_with({.large_segment = 64 * kMiB}, {block(0, 9, 2), block(1, 9, 9), block(2, 9, 10)}), 64U);
  EXPECT_EQ(mib_with({.large_segment = 64 * kMiB}, {block(0, 9, 10)}), 10U);
  EXPECT_EQ(mib_with({.kind = SegmentKind::expandable, .large_segment = 64 * kMiB}, {block(0, 9, 70)}), 128U);
}

TEST(AllocatorModelTest, ThePoolHoldsThePeakAndNoMoreThanASegmentForEachBlock) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<Block> blocks;
    std::uint64_t alone = 0;
    for (Moment made = 0; made < 200; ++made) {
      const std::uint64_t bytes = std::uint64_t{1} << (random() % 26U);
      blocks.push_back(block(made, made + 1 + static_cast<Moment>(random() % 40U), bytes + random() % bytes));
      alone += pool_of_one(blocks.back().bytes);
    }
    EXPECT_GE(pool_bytes(blocks), peak_bytes(blocks));
    EXPECT_LE(pool_bytes(blocks), alone);
    EXPECT_GE(pool_bytes(blocks, SegmentKind::expandable), peak_bytes(blocks));
  }
}

TEST(AllocatorModelTest, BytesAreToldApartByTheSegmentsThatAreTakenForThem) {
  const std::vector<Block> blocks = {block(0, 1, kMiB),
                                     block(1, 2, 512),
                                     block(1, kNever, kMiB + 512),
                                     block(2, kNever, 10 * kMiB - 512),
                                     block(2, kNever, 10 * kMiB),
                                     block(2, kNever, 13 * kMiB)};
  EXPECT_THAT(peak_by_segment(blocks), ElementsAre(kMiB, 11 * kMiB, 23 * kMiB));
  EXPECT_THAT(sum_by_segment(blocks), ElementsAre(kMiB + 512, 11 * kMiB, 23 * kMiB));
  EXPECT_EQ(in_whole_segments({1, 20 * kMiB + 1, 23 * kMiB}), (2 + 40 + 24) * kMiB);
  EXPECT_EQ(in_whole_segments({}), 0U);
}

}  // namespace
}  // namespace pianola::memory::allocator_model_test
