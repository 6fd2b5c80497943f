#include <pianola/profile/read/uneven_end.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gtest/gtest.h>

namespace pianola::profiling::uneven_end_test {
namespace {

// Two threads that launch in turns, every 10 us, each kernel 100 us later; of the first, the last `lost` are missing.
TimelineBuilder in_turns(int launches, int lost) {
  TimelineBuilder t;
  for (int i = 0; i < launches; ++i) {
    const bool forward = i % 2 == 0;
    if (forward && i >= launches - 2 * lost) continue;
    t.on_thread(forward ? 1 : 2).kernel(forward ? "forward" : "backward", 10 * i + 100, 5).launched(10 * i);
  }
  return t;
}

TEST(UnevenEndTest, IsLeftOutFromTheCallOnThatIsTheLastOfItsThread) {
  Timeline timeline = in_turns(1000, 100).annotation("backward", 9000, 5).build();
  EXPECT_EQ(leave_out_uneven_end(timeline, 0), us(10 * (999 - 798)));
  ASSERT_EQ(timeline.calls.size(), 799U);
  EXPECT_EQ(timeline.calls.back().time.begin, us(7980));
  EXPECT_EQ(timeline.work.size(), 799U) << "that of the calls that are left, though it comes later";
  EXPECT_TRUE(timeline.ranges.empty());
}

TEST(UnevenEndTest, OfThreadsThatEndTogetherIsOneCall) {
  Timeline timeline = in_turns(1000, 0).build();
  EXPECT_EQ(leave_out_uneven_end(timeline, 0), us(10));
  EXPECT_EQ(timeline.calls.size(), 999U);
}

TEST(UnevenEndTest, IsNoneOfOneThread) {
  TimelineBuilder t;
  for (int i = 0; i < 100; ++i) t.kernel("k", 10 * i + 5, 4).launched(10 * i);
  t.on_thread(7).kernel("seldom", 6, 1).launched(1);
  Timeline timeline = t.build();
  EXPECT_EQ(leave_out_uneven_end(timeline, 0), 0);
  EXPECT_EQ(timeline.calls.size(), 101U);
}

TEST(UnevenEndTest, AThreadThatEndedLongBeforeIsNone) {
  TimelineBuilder t;
  for (int i = 0; i < 3000; ++i) t.on_thread(1).kernel("training", 10 * i + 5, 4).launched(10 * i);
  for (int i = 3000; i < 24'000; ++i) t.on_thread(2).kernel("serving", 10 * i + 5, 4).launched(10 * i);
  Timeline timeline = t.build();
  EXPECT_EQ(leave_out_uneven_end(timeline, 0), 0);
  EXPECT_EQ(timeline.calls.size(), 24'000U);
}

TEST(UnevenEndTest, OtherProcessesStayAsTheyAre) {
  TimelineBuilder t = in_turns(1000, 100);
  t.in_process(1).kernel("other", 9500, 5).launched(9400);
  Timeline timeline = t.build();
  leave_out_uneven_end(timeline, 0);
  EXPECT_EQ(timeline.calls.size(), 800U);
}

}  // namespace
}  // namespace pianola::profiling::uneven_end_test
