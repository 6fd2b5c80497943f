#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::profiling::waits_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Five steps of 100 us: a runs from 10 to 30 and is waited for; b from 60 to 70, 30 us idle before it.
TimelineBuilder waiting_steps() {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    const double at = 100 * i;
    t.annotation("ProfilerStep#" + std::to_string(i), at, 100);
    t.kernel("a", at + 10, 20).launched(at + 4).kernel("b", at + 60, 10).launched(at + 54);
    t.annotation("logging", at + 8, 40);
    t.operation("aten::item", at + 9, 30).operation("aten::_local_scalar_dense", at + 10, 28).synchronize(at + 11, 24);
  }
  return t;
}

TEST(WaitsTest, AreNamedByTheInnermostOperationAndAnnotation) {
  const Analysis analysis = analyse(waiting_steps().build());
  ASSERT_THAT(analysis.waits, SizeIs(1));
  EXPECT_EQ(analysis.waits[0].call, "cudaStreamSynchronize");
  EXPECT_EQ(analysis.waits[0].inside, "aten::_local_scalar_dense, in 'logging'");
  EXPECT_DOUBLE_EQ(analysis.waits[0].per_iteration, 1);
  EXPECT_EQ(analysis.waits[0].idle, us(30));
}

TEST(WaitsTest, AreKeptApartByPlaceAndSortedByIdleTime) {
  TimelineBuilder t = waiting_steps();
  t.synchronize(150, 3, "cudaDeviceSynchronize");  // in no range but the step
  t.annotation("save#7", 180, 9).synchronize(181, 3).annotation("save#8", 280, 9).synchronize(281, 3);
  t.on_thread(5).operation("aten::copy_", 240, 20).synchronize(241, 3, "cudaMemcpy");  // another thread has none
  const Analysis analysis = analyse(t.build());
  ASSERT_EQ(analysis.iterations.size(), 4U);
  ASSERT_THAT(analysis.waits, SizeIs(4));
  EXPECT_EQ(analysis.waits[0].inside, "aten::_local_scalar_dense, in 'logging'");
  EXPECT_EQ(analysis.waits[1].inside, "in 'save'");  // both end gaps of 40 us
  EXPECT_DOUBLE_EQ(analysis.waits[1].per_iteration, 0.5);
  EXPECT_EQ(analysis.waits[1].idle, us(20));
  EXPECT_EQ(analysis.waits[2].call, "cudaDeviceSynchronize");
  EXPECT_EQ(analysis.waits[2].inside, "");
  EXPECT_EQ(analysis.waits[2].idle, 0);  // the wait for a fills more of that gap
  EXPECT_EQ(analysis.waits[3].inside, "aten::copy_");
}

TEST(WaitsTest, AreNoneWhereNothingWaits) {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) t.kernel("a", 50 * i + 10, 5).launched(50 * i);
  EXPECT_THAT(analyse(t.build()).waits, IsEmpty());
}

}  // namespace
}  // namespace pianola::profiling::waits_test
