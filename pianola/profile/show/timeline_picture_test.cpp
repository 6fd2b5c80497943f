#include <pianola/profile/show/timeline_picture.hpp>

#include <pianola/profile/testing/small_profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::timeline_picture_test {
namespace {

using Kind = PictureRow::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Kind> kinds_of(const TimelinePicture& picture) {
  std::vector<Kind> kinds;
  for (const PictureRow& row : picture.rows) kinds.push_back(row.kind);
  return kinds;
}

std::vector<std::int64_t> lanes_of(const TimelinePicture& picture, Kind kind) {
  std::vector<std::int64_t> lanes;
  for (const PictureRow& row : picture.rows) {
    if (row.kind == kind) lanes.push_back(row.lane);
  }
  return lanes;
}

TEST(TimelinePictureTest, ShowsTheIterationNearestToTheMedian) {
  const SmallProfile profile;
  EXPECT_EQ(drawn_iteration(profile.analysis), 2U);
  const TimelinePicture picture = picture_of(profile.timeline, profile.analysis);
  EXPECT_EQ(picture.iteration, 2U);
  EXPECT_EQ(picture.time, (TimeSpan{2'200'000, 3'300'000}));
}

TEST(TimelinePictureTest, HasRangesOverCallsOverGapsOverWork) {
  const SmallProfile profile;
  const TimelinePicture picture = picture_of(profile.timeline, profile.analysis);
  ASSERT_THAT(kinds_of(picture), ElementsAre(Kind::ranges, Kind::calls, Kind::gaps, Kind::work));
  for (const PictureRow& row : picture.rows) ASSERT_THAT(row.marks, SizeIs(1));
  EXPECT_EQ(picture.rows[0].marks[0].kind, MarkKind::range);
  EXPECT_EQ(picture.rows[1].marks[0].time, (TimeSpan{2'250'000, 2'260'000}));
  EXPECT_EQ(picture.rows[2].covered, 100'000);
  EXPECT_EQ(picture.rows[3].marks[0].event, 2U) << "the third work";
  EXPECT_EQ(picture.rows[3].lane, 7);
}

TEST(TimelinePictureTest, CutsWhatReachesBeyondTheIteration) {
  SmallProfile profile;
  profile.add_work({2'100'000, 2'210'000}, "before", 8);
  profile.add_work({3'250'000, 3'400'000}, "after", 8);
  profile.add_work({3'300'000, 3'400'000}, "next", 8);
  const TimelinePicture picture = picture_of(profile.timeline, profile.analysis);
  ASSERT_THAT(picture.rows, SizeIs(5));
  ASSERT_THAT(picture.rows[4].marks, SizeIs(2));
  EXPECT_EQ(picture.rows[4].marks[0].time, (TimeSpan{2'200'000, 2'210'000}));
  EXPECT_EQ(picture.rows[4].marks[1].time, (TimeSpan{3'250'000, 3'300'000}));
}

TEST(TimelinePictureTest, LeavesOutOtherDevicesProcessesAndCallsThatNeitherLaunchNorWait) {
  SmallProfile profile;
  const std::size_t rows = picture_of(profile.timeline, profile.analysis).rows.size();
  profile.add_work({2'300'000, 2'400'000}, "elsewhere", 30);
  profile.timeline.work.back().device = 1;
  profile.add_work({2'300'000, 2'400'000}, "in another process", 31);
  profile.timeline.work.back().process = 1;
  profile.add_call({2'300'000, 2'400'000}, "cudaMalloc", HostCall::Kind::other, 9);
  profile.add_range({2'300'000, 2'400'000}, "aten::mm", HostRange::Kind::operation, 9);
  EXPECT_THAT(picture_of(profile.timeline, profile.analysis).rows, SizeIs(rows));
}

TEST(TimelinePictureTest, PutsNestedRangesUnderEachOtherAndApartOnesSideBySide) {
  SmallProfile profile;
  profile.add_range({2'300'000, 2'700'000}, "forward");
  profile.add_range({2'400'000, 2'500'000}, "nn.Module: Linear_0", HostRange::Kind::module);
  profile.add_range({2'500'000, 2'600'000}, "nn.Module: Linear_1", HostRange::Kind::module);
  profile.add_range({2'700'000, 2'900'000}, "backward");
  const TimelinePicture picture = picture_of(profile.timeline, profile.analysis);
  ASSERT_THAT(lanes_of(picture, Kind::ranges), ElementsAre(1, 1, 1));
  EXPECT_THAT(picture.rows[0].marks, SizeIs(1));
  EXPECT_THAT(picture.rows[1].marks, SizeIs(2));
  EXPECT_THAT(picture.rows[2].marks, SizeIs(2));
}

TEST(TimelinePictureTest, LeavesOutTheStreamsWithLeastWorkWhereThereAreMany) {
  SmallProfile profile;
  for (std::int64_t stream = 20; stream < 40; ++stream) {
    profile.add_work({2'300'000, 2'300'000 + stream * 1000}, "kernel", stream);
  }
  const TimelinePicture picture = picture_of(profile.timeline, profile.analysis);
  EXPECT_THAT(lanes_of(picture, Kind::work), ElementsAre(7, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39));
  EXPECT_EQ(picture.left_out, 9U);
}

TEST(TimelinePictureTest, ShowsTheWholeTimelineWhereThereAreNoIterations) {
  SmallProfile profile;
  profile.analysis.iterations.clear();
  EXPECT_EQ(picture_of(profile.timeline, profile.analysis).time, (TimeSpan{0, 3'300'000}));
  EXPECT_THAT(picture_of(Timeline{}, Analysis{}).rows, IsEmpty());
}

// One row, of 1 ms.
TimelinePicture picture_with(const std::vector<Mark>& marks) {
  TimelinePicture picture;
  picture.time = {0, 1'000'000};
  picture.rows.push_back({.marks = marks, .events = marks.size()});
  return picture;
}

Mark mark(Nanoseconds begin, Nanoseconds end, std::size_t event, MarkKind kind = MarkKind::kernel) {
  return {.time = {begin, end}, .kind = kind, .covered = end - begin, .longest = end - begin, .event = event};
}

TEST(MergeMarksTest, LeavesRowsAloneThatAreSmallEnough) {
  TimelinePicture picture = picture_with({mark(0, 1, 0), mark(1, 2, 1)});
  merge_marks(picture, 2);
  EXPECT_THAT(picture.rows[0].marks, SizeIs(2));
}

TEST(MergeMarksTest, AMergedMarkIsCalledAfterTheLongest) {
  TimelinePicture picture = picture_with({mark(0, 10, 0), mark(12, 32, 1, MarkKind::copy), mark(40, 45, 2)});
  merge_marks(picture, 1);
  ASSERT_THAT(picture.rows[0].marks, SizeIs(1));
  const Mark& merged = picture.rows[0].marks[0];
  EXPECT_EQ(merged.time, (TimeSpan{0, 45}));
  EXPECT_EQ(merged.count, 3U);
  EXPECT_EQ(merged.covered, 35) << "10 + 20 + 5";
  EXPECT_EQ(merged.longest, 20);
  EXPECT_EQ(merged.event, 1U);
  EXPECT_EQ(merged.kind, MarkKind::copy);
}

TEST(MergeMarksTest, LongMarksStayAndShortOnesBetweenThemAreMerged) {
  TimelinePicture picture = picture_with(
      {mark(0, 400'000, 0), mark(400'010, 400'020, 1), mark(400'030, 400'040, 2), mark(500'000, 900'000, 3)});
  merge_marks(picture, 3);
  ASSERT_THAT(picture.rows[0].marks, SizeIs(3));
  EXPECT_EQ(picture.rows[0].marks[1].time, (TimeSpan{400'010, 400'040}));
}

TEST(MergeMarksTest, KeepsWithinTheLimitAndLosesNothing) {
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < 50'000; ++i) {
    const auto begin = static_cast<Nanoseconds>(20 * i);
    marks.push_back(mark(begin, begin + (i % 7 == 0 ? 15 : 3), i));
  }
  Nanoseconds before = 0;
  for (const Mark& m : marks) before += m.covered;
  TimelinePicture picture = picture_with(marks);
  merge_marks(picture, 3000);
  EXPECT_LE(picture.rows[0].marks.size(), 3000U);
  EXPECT_GE(picture.rows[0].marks.size(), 1500U) << "no coarser than need be";
  std::size_t events = 0;
  Nanoseconds covered = 0;
  Nanoseconds end = 0;
  for (const Mark& m : picture.rows[0].marks) {
    EXPECT_GE(m.time.begin, end) << "marks overlap";
    end = m.time.end;
    events += m.count;
    covered += m.covered;
  }
  EXPECT_EQ(events, 50'000U);
  EXPECT_EQ(covered, before);
}

TEST(MarkKindTest, GapsHaveTheColourOfTheCallsThatCauseThem) {
  EXPECT_EQ(class_of(mark_of(GapCause::launch)), "l");
  EXPECT_EQ(class_of(mark_of(GapCause::synchronization)), "s");
  EXPECT_EQ(class_of(mark_of(GapCause::copy)), "c");
  EXPECT_EQ(class_of(mark_of(GapCause::data)), "d");
  EXPECT_EQ(class_of(mark_of(GapCause::device)), "w");
  EXPECT_EQ(class_of(MarkKind::kernel), "k");
  EXPECT_EQ(class_of(MarkKind::memset), "m");
  EXPECT_EQ(class_of(MarkKind::graph), "g");
  EXPECT_EQ(class_of(MarkKind::range), "r");
}

}  // namespace
}  // namespace pianola::profiling::timeline_picture_test
