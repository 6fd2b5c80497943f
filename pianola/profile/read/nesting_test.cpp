#include <pianola/profile/read/nesting.hpp>

#include <gtest/gtest.h>

namespace pianola::profiling::nesting_test {
namespace {

HostCall call(TimeSpan time, std::uint64_t correlation, std::int64_t thread = 1, std::int32_t process = 0) {
  return {.time = time, .process = process, .thread = thread, .correlation = correlation};
}

DeviceWork work(std::uint64_t correlation, std::int32_t process = 0) {
  return {.time = {}, .process = process, .correlation = correlation};
}

HostRange range(TimeSpan time, std::int64_t thread = 1) { return {.time = time, .thread = thread}; }

TEST(NestingTest, OfNestedCallsTheOuterOneIsKeptWithTheWorkOfTheInner) {
  Timeline timeline;
  timeline.calls = {call({12, 18}, 6), call({10, 20}, 5), call({12, 18}, 7, 2), call({30, 40}, 8),
                    call({30, 40}, 9, 1, 1)};
  timeline.work = {work(6), work(5), work(7), work(6, 1)};
  keep_outer_calls(timeline);
  ASSERT_EQ(timeline.calls.size(), 4U);
  EXPECT_EQ(timeline.calls[0].correlation, 5U);
  EXPECT_EQ(timeline.calls[1].correlation, 8U);
  EXPECT_EQ(timeline.calls[2].correlation, 7U) << "of another thread";
  EXPECT_EQ(timeline.calls[3].correlation, 9U) << "of another process";
  EXPECT_EQ(timeline.work[0].correlation, 5U);
  EXPECT_EQ(timeline.work[1].correlation, 5U);
  EXPECT_EQ(timeline.work[2].correlation, 7U);
  EXPECT_EQ(timeline.work[3].correlation, 6U) << "another process counts for itself";
}

TEST(NestingTest, CallsOneAfterTheOtherAreBothKept) {
  Timeline timeline;
  timeline.calls = {call({10, 20}, 1), call({20, 30}, 2), call({25, 35}, 3)};
  keep_outer_calls(timeline);
  EXPECT_EQ(timeline.calls.size(), 3U);
}

TEST(NestingTest, AnInnerCallWithoutCorrelationMovesNoWork) {
  Timeline timeline;
  timeline.calls = {call({10, 20}, 5), call({12, 18}, 0)};
  timeline.work = {work(0)};
  keep_outer_calls(timeline);
  EXPECT_EQ(timeline.calls.size(), 1U);
  EXPECT_EQ(timeline.work[0].correlation, 0U);
}

TEST(NestingTest, RangesThatCrossAnotherAreLeftOut) {
  Timeline timeline;
  timeline.ranges = {range({0, 100}), range({10, 50}),  range({40, 60}),
                     range({50, 70}), range({90, 120}), range({90, 120}, 2)};
  EXPECT_EQ(keep_nested_ranges(timeline), 2U);
  ASSERT_EQ(timeline.ranges.size(), 4U);
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 100}));
  EXPECT_EQ(timeline.ranges[1].time, (TimeSpan{10, 50}));
  EXPECT_EQ(timeline.ranges[2].time, (TimeSpan{50, 70}));
  EXPECT_EQ(timeline.ranges[3].thread, 2);
}

}  // namespace
}  // namespace pianola::profiling::nesting_test
