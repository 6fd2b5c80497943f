#include <pianola/profile/timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::timeline_test {
namespace {

using ::testing::ElementsAre;

TEST(TimelineTest, ANameKeepsItsNumber) {
  Timeline timeline;
  const NameId gemm = timeline.intern("gemm");
  const NameId empty = timeline.intern("");
  std::string other_storage = "ge";
  other_storage += "mm";
  EXPECT_NE(gemm, empty);
  EXPECT_EQ(timeline.intern(other_storage), gemm);
  EXPECT_EQ(timeline.intern(""), empty);
  EXPECT_EQ(timeline.names(), 2u);
  EXPECT_EQ(timeline.name(gemm), "gemm");
  EXPECT_EQ(timeline.name(empty), "");
}

TEST(TimelineTest, NamesOutliveManyMore) {
  Timeline timeline;
  const NameId first = timeline.intern("kernel 0");
  for (int i = 1; i < 10'000; ++i) (void)timeline.intern("kernel " + std::to_string(i));
  EXPECT_EQ(timeline.name(first), "kernel 0");
  EXPECT_EQ(timeline.intern("kernel 0"), first);
  EXPECT_EQ(timeline.names(), 10'000u);
}

TEST(TimelineTest, ACopyKnowsTheNamesOfTheOriginal) {
  Timeline copy;
  {
    Timeline timeline;
    (void)timeline.intern("gemm");
    copy = timeline;
  }
  EXPECT_EQ(copy.intern("gemm"), 0u);
  EXPECT_EQ(copy.name(0), "gemm");
}

TEST(TimelineTest, SortsByBeginAndOfTwoThatBeginTogetherTheLongerFirst) {
  Timeline timeline;
  for (const TimeSpan time : {TimeSpan{5, 6}, TimeSpan{0, 2}, TimeSpan{0, 9}, TimeSpan{-3, -1}}) {
    timeline.ranges.push_back({.time = time});
    timeline.calls.push_back({.time = time});
    timeline.work.push_back({.time = time});
  }
  timeline.sort();
  const auto sorted = [](const auto& events) {
    std::vector<TimeSpan> times;
    for (const auto& event : events) times.push_back(event.time);
    return times;
  };
  const auto in_order = ElementsAre(TimeSpan{-3, -1}, TimeSpan{0, 9}, TimeSpan{0, 2}, TimeSpan{5, 6});
  EXPECT_THAT(sorted(timeline.ranges), in_order);
  EXPECT_THAT(sorted(timeline.calls), in_order);
  EXPECT_THAT(sorted(timeline.work), in_order);
}

TEST(TimelineTest, EventsOfTheSameTimeKeepTheirOrder) {
  Timeline timeline;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    timeline.calls.push_back({.time = {i % 2 == 0 ? 7 : 0, 8}, .correlation = i});
  }
  timeline.sort();
  for (std::size_t i = 0; i < 500; ++i) {
    EXPECT_EQ(timeline.calls[i].correlation, 2 * i + 1) << "of those that begin at 0";
    EXPECT_EQ(timeline.calls[500 + i].correlation, 2 * i) << "of those that begin at 7";
  }
}

TEST(TimelineTest, SortsWhatTheAllocatorDidByTime) {
  Timeline timeline;
  for (const Nanoseconds time : {7, 3, 7, 5}) {
    timeline.memory.push_back({.time = time, .address = timeline.memory.size()});
  }
  timeline.sort();
  std::vector<std::uint64_t> addresses;
  for (const MemoryEvent& event : timeline.memory) addresses.push_back(event.address);
  EXPECT_THAT(addresses, ElementsAre(1, 3, 0, 2)) << "of the same time in their order";
}

TEST(TimelineTest, ExtendsFromTheFirstBeginToTheLastEndOfAnything) {
  Timeline timeline;
  EXPECT_EQ(timeline.extent(), TimeSpan{});
  timeline.calls.push_back({.time = {100, 110}});
  EXPECT_EQ(timeline.extent(), (TimeSpan{100, 110}));
  timeline.ranges.push_back({.time = {90, 95}});
  timeline.work.push_back({.time = {105, 300}});
  timeline.work.push_back({.time = {200, 250}});
  EXPECT_EQ(timeline.extent(), (TimeSpan{90, 300}));
  timeline.memory.push_back({.time = 80});
  timeline.memory.push_back({.time = 310});
  EXPECT_EQ(timeline.extent(), (TimeSpan{80, 310}));
}

}  // namespace
}  // namespace pianola::timeline_test
