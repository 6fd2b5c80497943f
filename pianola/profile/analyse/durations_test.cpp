#include <pianola/profile/analyse/durations.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gtest/gtest.h>

namespace pianola::profiling::durations_test {
namespace {

struct Bin {
  Nanoseconds duration;
  std::size_t bin;
};
class DurationBin : public ::testing::TestWithParam<Bin> {};
TEST_P(DurationBin, DoublesItsBounds) { EXPECT_EQ(duration_bin(GetParam().duration), GetParam().bin); }
INSTANTIATE_TEST_SUITE_P(Bounds, DurationBin,
                         ::testing::Values(Bin{0, 0}, Bin{999, 0}, Bin{1000, 1}, Bin{1999, 1}, Bin{2000, 2},
                                           Bin{3999, 2}, Bin{4000, 3}, Bin{1'000'000, 10}, Bin{1'024'000, 11},
                                           Bin{524'287'999, 19}, Bin{524'288'000, 20}, Bin{5'000'000'000, 20}));

TEST(DurationsTest, AreThoseOfKernelsAlone) {
  TimelineBuilder t;
  t.kernel("a", 0, 3).kernel("b", 5, 49.999).kernel("c", 100, 50).kernel("d", 200, 897.001).kernel("e", 2000, 1000);
  t.copy_in(4000, 9000).memset(4000, 5);
  const Timeline timeline = t.build();
  const DeviceWorkList list = choose_device(timeline, -1, -2);
  const DurationSummary summary = summarize_durations(list, 0, list.size());
  EXPECT_EQ(summary.kernels, 5U);
  EXPECT_EQ(summary.total, us(2000));
  EXPECT_EQ(summary.median, us(50));
  EXPECT_EQ(summary.longest, us(1000));
  EXPECT_DOUBLE_EQ(summary.share_small, 0.4);
  EXPECT_DOUBLE_EQ(summary.share_long, 0.5);
  EXPECT_EQ(summary.histogram[2], 1U);   // 3 us
  EXPECT_EQ(summary.histogram[6], 2U);   // 49.999 and 50 us
  EXPECT_EQ(summary.histogram[10], 2U);  // 897.001 and 1000 us
}

TEST(DurationsTest, OfAnEvenNumberHaveTheMeanOfTheMiddleTwoAsMedian) {
  TimelineBuilder t;
  t.kernel("a", 0, 1).kernel("b", 5, 4).kernel("c", 10, 2).kernel("d", 20, 9).kernel("outside", 40, 100);
  const Timeline timeline = t.build();
  EXPECT_EQ(summarize_durations(choose_device(timeline, -1, -2), 0, 4).median, us(3));
}

TEST(DurationsTest, OfNoKernelAreZero) {
  const Timeline timeline = TimelineBuilder().copy_in(0, 5).build();
  const DurationSummary summary = summarize_durations(choose_device(timeline, -1, -2), 0, 1);
  EXPECT_EQ(summary.kernels, 0U);
  EXPECT_EQ(summary.share_small, 0);
  EXPECT_EQ(summary.share_long, 0);
}

}  // namespace
}  // namespace pianola::profiling::durations_test
