#include <pianola/profile/analyse/issued.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gtest/gtest.h>

namespace pianola::profiling::issued_test {
namespace {

TEST(IssuedTest, FindsTheCallOfEachWorkInWhicheverOrderTheyRan) {
  TimelineBuilder t;
  t.kernel("second", 30, 5).launched(10).kernel("first", 20, 5).launched(14).kernel("unknown", 40, 5);
  const Timeline timeline = t.build();
  const Issued issued(choose_device(timeline, -1, -2));
  EXPECT_EQ(issued.call(0)->time.begin, us(14));
  EXPECT_EQ(issued.call(1)->time.begin, us(10));
  EXPECT_EQ(issued.call(2), nullptr);
  EXPECT_EQ(issued.first_work_of(0), 1U);
  EXPECT_DOUBLE_EQ(issued.share_known(), 2.0 / 3);
}

TEST(IssuedTest, GivesAllWorkOfAGraphToItsLaunch) {
  TimelineBuilder t;
  t.kernel("a", 10, 5).kernel("b", 16, 5).kernel("c", 22, 5).launched_by_graph(1, 3, 0);
  const Timeline timeline = t.build();
  const Issued issued(choose_device(timeline, -1, -2));
  EXPECT_EQ(issued.call_of(0), 0U);
  EXPECT_EQ(issued.call_of(2), 0U);
  EXPECT_EQ(issued.first_work_of(0), 0U);
}

TEST(IssuedTest, TakesTheOuterOfTwoCallsOfOneCorrelation) {
  Timeline timeline = TimelineBuilder().kernel("a", 10, 5).launched(0, 6).build();
  HostCall driver = timeline.calls[0];
  driver.time = {us(1), us(4)};
  driver.name = timeline.intern("cuLaunchKernel");
  timeline.calls.push_back(driver);
  const Issued issued(choose_device(timeline, -1, -2));
  EXPECT_EQ(issued.call_of(0), 0U);
  EXPECT_EQ(issued.first_work_of(1), Issued::kInner);
}

TEST(IssuedTest, KeepsDevicesAndProcessesApart) {
  TimelineBuilder t;
  t.kernel("here", 10, 5).launched(0).kernel("here", 20, 5).launched(8).synchronize(30, 1);
  t.on_device(1).kernel("there", 10, 5).launched(4);
  Timeline timeline = t.build();
  HostCall foreign = timeline.calls[0];  // Another process counts its calls from 1 as well.
  foreign.process = 1;
  timeline.calls.insert(timeline.calls.begin(), foreign);
  const Issued issued(choose_device(timeline, 0, 0));
  EXPECT_EQ(issued.call_of(0), 1U);
  EXPECT_EQ(issued.first_work_of(0), Issued::kNone);
  EXPECT_EQ(issued.first_work_of(2), Issued::kElsewhere);
  EXPECT_EQ(issued.first_work_of(4), Issued::kNone);
}

}  // namespace
}  // namespace pianola::profiling::issued_test
