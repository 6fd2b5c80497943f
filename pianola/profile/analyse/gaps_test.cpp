#include <pianola/profile/analyse/gaps.hpp>

#include <pianola/profile/analyse/data_loading.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace pianola::profiling::gaps_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Gap> gaps_of(const Timeline& timeline) {
  const DeviceWorkList list = choose_device(timeline, -1, -2);
  return find_gaps(list, Issued(list), timeline.extent());
}
std::vector<Gap> gaps_of(const TimelineBuilder& builder) { return gaps_of(builder.build()); }

MATCHER_P3(IsGap, cause, from, to, "") {
  *result_listener << in_words(arg.cause) << " from " << arg.time.begin << " to " << arg.time.end;
  return arg.cause == cause && arg.time == TimeSpan{us(from), us(to)};
}

TEST(GapsTest, TheHostWasLateIsALaunchGap) {
  TimelineBuilder t;
  t.kernel("a", 10, 5).launched(4, 3);
  t.kernel("b", 40, 5).launched(34, 3);  // issued 19 us after the first one ended
  const Timeline timeline = t.build();
  const std::vector<Gap> gaps = gaps_of(timeline);
  ASSERT_THAT(gaps, SizeIs(1));
  EXPECT_THAT(gaps[0], IsGap(GapCause::launch, 15, 40));
  EXPECT_EQ(timeline.name(timeline.work[gaps[0].next].name), "b");
  EXPECT_FALSE(gaps[0].culprit.has_value());
}

TEST(GapsTest, WorkIssuedLongBeforeIsTheDevicesGap) {
  TimelineBuilder t;
  t.kernel("a", 10, 50).launched(4, 3).kernel("b", 63, 5).launched(8, 3);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::device, 60, 63)));
}

TEST(GapsTest, ACallThatEndedLessThanThreeMicrosecondsBeforeWasLate) {
  TimelineBuilder late;
  late.kernel("a", 10, 10).launched(4, 3).kernel("b", 22, 5).launched(14.5, 3);  // ended at 17.5, 2.5 us before
  EXPECT_THAT(gaps_of(late), ::testing::ElementsAre(IsGap(GapCause::launch, 20, 22)));
  TimelineBuilder early;
  early.kernel("a", 10, 10).launched(4, 3).kernel("b", 22, 5).launched(14, 3);
  EXPECT_THAT(gaps_of(early), ::testing::ElementsAre(IsGap(GapCause::device, 20, 22)));
}

TEST(GapsTest, AWaitOfTheHostIsASynchronizationAndTheCallTheCulprit) {
  TimelineBuilder t;
  t.kernel("a", 10, 20).launched(4, 3);
  t.synchronize(8, 26);  // from 8 to 34, the kernel ends at 30
  t.kernel("b", 45, 5).launched(39, 3);
  const Timeline timeline = t.build();
  const std::vector<Gap> gaps = gaps_of(timeline);
  ASSERT_THAT(gaps, SizeIs(1));
  EXPECT_THAT(gaps[0], IsGap(GapCause::synchronization, 30, 45));
  ASSERT_TRUE(gaps[0].culprit.has_value());
  EXPECT_EQ(timeline.name(timeline.calls[*gaps[0].culprit].name), "cudaStreamSynchronize");
}

TEST(GapsTest, OfTwoWaitsTheOneThatFillsMoreIsTheCulprit) {
  TimelineBuilder t;
  t.kernel("a", 10, 20).launched(4, 3);
  t.synchronize(8, 24, "cudaEventSynchronize").synchronize(33, 6, "cudaStreamSynchronize");  // 2 and 6 us of the gap
  t.kernel("b", 50, 5).launched(44, 3);
  const Timeline timeline = t.build();
  const std::vector<Gap> gaps = gaps_of(timeline);
  ASSERT_THAT(gaps, SizeIs(1));
  EXPECT_EQ(timeline.name(timeline.calls[gaps[0].culprit.value()].name), "cudaStreamSynchronize");
}

TEST(GapsTest, AWaitThatEndedBeforeTheGapOrAfterTheLaunchIsInnocent) {
  TimelineBuilder t;
  t.synchronize(0, 9);
  t.kernel("a", 10, 10).launched(4, 3).kernel("b", 40, 5).launched(34, 3);
  t.on_thread(2).synchronize(22, 14);  // another thread's: it was still waiting when b was issued
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::launch, 20, 40)));
}

TEST(GapsTest, ACopyThatTheHostWaitsForIsASynchronization) {
  TimelineBuilder t;
  t.kernel("a", 10, 5).launched(4, 3).copy_out(16, 2).waited_for(8, 12);  // the call returns at 20
  t.kernel("b", 30, 5).launched(24, 3);
  EXPECT_THAT(gaps_of(t),
              ::testing::ElementsAre(IsGap(GapCause::launch, 15, 16), IsGap(GapCause::synchronization, 18, 30)));
}

TEST(GapsTest, ALoaderThatFillsMostOfTheGapIsData) {
  const auto with_loader_for = [](double for_us) {
    TimelineBuilder t;
    t.kernel("a", 10, 10).launched(4, 3);
    t.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, for_us);
    t.kernel("b", 60, 5).launched(54, 3);  // a gap of 40 us
    return gaps_of(t);
  };
  EXPECT_THAT(with_loader_for(21), ::testing::ElementsAre(IsGap(GapCause::data, 20, 60)));
  EXPECT_THAT(with_loader_for(20), ::testing::ElementsAre(IsGap(GapCause::launch, 20, 60)));
}

TEST(GapsTest, ASynchronizationComesBeforeData) {
  TimelineBuilder t;
  t.kernel("a", 10, 10).launched(4, 3).synchronize(8, 14).annotation("load_batch", 22, 35);
  t.kernel("b", 60, 5).launched(57, 2);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::synchronization, 20, 60)));
}

TEST(GapsTest, KernelsInsideAGraphNeverWaitForTheHost) {
  TimelineBuilder t;
  t.kernel("a", 10, 2).kernel("b", 13, 2).kernel("c", 20, 2).launched_by_graph(1, 3, 0, 30);  // returns after c ended
  t.kernel("a", 50, 2).kernel("b", 53, 2).kernel("c", 60, 2).launched_by_graph(1, 3, 40, 30);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::device, 12, 13), IsGap(GapCause::device, 15, 20),
                                                 IsGap(GapCause::launch, 22, 50), IsGap(GapCause::device, 52, 53),
                                                 IsGap(GapCause::device, 55, 60)));
}

TEST(GapsTest, WithoutCallsShortGapsAreTheDevices) {
  TimelineBuilder t;
  t.kernel("a", 0, 5).kernel("b", 6.9, 5).kernel("c", 13.9, 5);  // 1.9 and 2 us
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::device, 5, 6.9), IsGap(GapCause::launch, 11.9, 13.9)));
}

TEST(GapsTest, OnlyWhereNoStreamWorksIsAGap) {
  TimelineBuilder t;
  t.on_stream(7).kernel("a", 0, 10).kernel("b", 30, 10);
  t.on_stream(8).kernel("c", 5, 15).kernel("d", 22, 3);  // together: 0 to 20, 22 to 25, 30 to 40
  t.on_device(1).kernel("elsewhere", 20, 2);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::launch, 20, 22), IsGap(GapCause::launch, 25, 30)));
}

TEST(GapsTest, AKernelThatWaitsForACopyIsACopyGapWithoutIdleTime) {
  TimelineBuilder t;
  t.kernel("a", 10, 10).launched(4, 3);
  t.on_stream(8).copy_in(20, 30).launched(8, 3);
  t.on_stream(7).kernel("b", 51, 5).launched(12, 3);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::copy, 20, 50), IsGap(GapCause::device, 50, 51)));
}

TEST(GapsTest, AKernelWaitsForACopyOnlyFromWhenItWasIssued) {
  TimelineBuilder t;
  t.kernel("a", 10, 10).launched(4, 3).copy_in(20, 30).launched(8, 3);
  t.kernel("b", 50, 5).launched(32, 3);  // ended at 35
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::copy, 35, 50)));
}

TEST(GapsTest, ACopyThatNoIssuedKernelWaitsForIsWork) {
  TimelineBuilder late;
  late.kernel("a", 10, 10).launched(4, 3).copy_in(20, 30).launched(8, 3).kernel("b", 60, 5).launched(52, 3);
  EXPECT_THAT(gaps_of(late), ::testing::ElementsAre(IsGap(GapCause::launch, 50, 60)));
  TimelineBuilder beside;
  beside.on_stream(7).kernel("a", 0, 60).launched(-9, 3).kernel("b", 60, 5).launched(-5, 3);
  beside.on_stream(8).copy_in(20, 30).launched(8, 3);
  EXPECT_THAT(gaps_of(beside), IsEmpty());
  TimelineBuilder on_device;
  on_device.kernel("a", 10, 10).copy_within(20, 30).kernel("b", 50, 5);
  EXPECT_THAT(gaps_of(on_device), IsEmpty());
}

TEST(GapsTest, WithoutCallsAKernelRightAfterACopyWaitedForIt) {
  TimelineBuilder t;
  t.kernel("a", 10, 10).copy_in(20, 30).kernel("b", 51, 5).copy_in(56, 10).kernel("c", 68, 5);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::copy, 20, 50), IsGap(GapCause::device, 50, 51),
                                                 IsGap(GapCause::launch, 66, 68)));
}

TEST(GapsTest, BetweenOperationsOfACpuIsLaunchTimeOrData) {
  TimelineBuilder t;
  t.cpu_work("aten::mm", 0, 10).cpu_work("aten::add", 11, 5).cpu_work("aten::mm", 40, 5);
  t.annotation("data_loading", 17, 20);
  EXPECT_THAT(gaps_of(t), ::testing::ElementsAre(IsGap(GapCause::launch, 10, 11), IsGap(GapCause::data, 16, 40)));
}

struct Loader {
  const char* name;
  HostRange::Kind kind;
  bool loads;
};
class LoadsData : public ::testing::TestWithParam<Loader> {};
TEST_P(LoadsData, IsToldByTheName) { EXPECT_EQ(loads_data(GetParam().name, GetParam().kind), GetParam().loads); }
INSTANTIATE_TEST_SUITE_P(Names, LoadsData,
                         ::testing::Values(Loader{"enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                                                  HostRange::Kind::annotation, true},
                                           Loader{"enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                                                  HostRange::Kind::operation, true},
                                           Loader{"DataLoader.__init__", HostRange::Kind::annotation, false},
                                           Loader{"Data_Loading", HostRange::Kind::annotation, true},
                                           Loader{"load_batch", HostRange::Kind::annotation, true},
                                           Loader{"load_batch", HostRange::Kind::operation, false},
                                           Loader{"forward", HostRange::Kind::annotation, false},
                                           Loader{"update data", HostRange::Kind::annotation, false},
                                           Loader{"for batch in dataloader", HostRange::Kind::annotation, false}));

}  // namespace
}  // namespace pianola::profiling::gaps_test
