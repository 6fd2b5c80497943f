#include <pianola/profile/analyse/host_pace.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gtest/gtest.h>

#include <string>

namespace pianola::profiling::host_pace_test {
namespace {

constexpr int kIterations = 6;
constexpr double kLength = 200;

// Ten launches of 3 us, 10 us apart, but for 20 us more before the sixth. The eighth finds its queue full and takes 9 us.
TimelineBuilder iterations_of_ten_launches() {
  TimelineBuilder t;
  for (int i = 0; i < kIterations; ++i) {
    const double at = kLength * i;
    t.annotation("ProfilerStep#" + std::to_string(i), at, kLength);
    for (int k = 0; k < 10; ++k) {
      const double launch = at + 2 + 10 * k + (k < 5 ? 0 : 20);
      t.kernel("k" + std::to_string(k), launch + 5, 4).launched(launch, k == 7 ? 9 : 3);
    }
  }
  return t;
}

HostPace pace_of(const TimelineBuilder& t) {
  const Timeline timeline = t.build();
  HostPace pace = host_pace(timeline, analyse(timeline));
  pace.before.clear();  // of calls that are no more
  return pace;
}

TEST(HostPaceTest, CountsALaunchFromTheEndOfTheOneBeforeAndNoTimeInAFullQueue) {
  const HostPace pace = pace_of(iterations_of_ten_launches());
  // Seven of 10 us; the sixth with 27 us before it; the ninth 1 us after the one that took 9 us.
  EXPECT_EQ(pace.per_launch, us(7 * 10 + (27 + 3) + (1 + 3)) / 9);
}

TEST(HostPaceTest, TimeBetweenIterationsIsAPauseWhereItIsLongerThanAnyWithin) {
  EXPECT_EQ(pace_of(iterations_of_ten_launches()).pauses, us(202 - 115 - 27));
}

TEST(HostPaceTest, LoadingOfDataIsAPauseWhereverItIs) {
  TimelineBuilder between = iterations_of_ten_launches();
  TimelineBuilder within = iterations_of_ten_launches();
  for (int i = 0; i < kIterations; ++i) {
    between.annotation("load batch", kLength * i + 117, 80);
    within.annotation("load batch", kLength * i + 47, 20);
  }
  EXPECT_EQ(pace_of(between).pauses, us(80));
  EXPECT_EQ(pace_of(within).pauses, us(20 + (202 - 115 - 7)));
  EXPECT_EQ(pace_of(within).per_launch, us(8 * 10 + (1 + 3)) / 9);
}

TEST(HostPaceTest, AWaitForTheDeviceIsNoTimeOfTheHost) {
  TimelineBuilder t = iterations_of_ten_launches();
  for (int i = 0; i < kIterations; ++i) t.synchronize(kLength * i + 46, 25);  // up to 1 us before the sixth launch
  EXPECT_EQ(pace_of(t).per_launch, us(7 * 10 + (1 + 3) + (1 + 3)) / 9);
}

TEST(HostPaceTest, FewLaunchesSayNothingOfThePace) {
  TimelineBuilder t;
  for (int i = 0; i < kIterations; ++i) t.kernel("a", 100 * i + 5, 4).launched(100 * i);
  EXPECT_EQ(pace_of(t).per_launch, 0);
}

}  // namespace
}  // namespace pianola::profiling::host_pace_test
