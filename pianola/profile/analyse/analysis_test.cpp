#include <pianola/profile/analyse/analysis.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/testing/large_timeline.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace pianola::analysis_test {
namespace {

using profiling::TimelineBuilder;
using profiling::us;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

Nanoseconds idle(const std::array<Nanoseconds, kGapCauses>& times, GapCause cause) {
  return times[static_cast<std::size_t>(cause)];
}

// Iterations of `durations` us. In each, from its begin on: a copy from 0 to 4, a from 4 to 24 (which waited for the
// copy from 2 on), b beside it on another stream from 14 to 34, c from 37 to 47 (issued before), d from 60 to 61 after
// a wait that ended at 52; then nothing until the next one.
Timeline program(const std::vector<double>& durations) {
  TimelineBuilder t;
  double at = 100;
  for (const double duration : durations) {
    t.on_stream(7).copy_in(at, 4).launched(at - 8, 2);
    t.kernel("a", at + 4, 20).launched(at - 1, 3);
    t.on_stream(8).kernel("b", at + 14, 20).launched(at + 5, 3);
    t.on_stream(7).kernel("c", at + 37, 10).launched(at + 24, 3);
    t.synchronize(at + 28, 24);
    t.kernel("d", at + 60, 1).launched(at + 55, 3);
    at += duration;
  }
  return t.build();
}

TEST(AnalysisTest, AccountsForAllOfAnIteration) {
  const Timeline timeline = program({100, 100, 100, 100, 100});
  const Analysis analysis = analyse(timeline);
  EXPECT_EQ(analysis.by, IterationsBy::repetition);
  ASSERT_THAT(analysis.iterations, SizeIs(4));
  const Iteration& second = analysis.iterations[1];
  EXPECT_EQ(second.time, (TimeSpan{us(200), us(300)}));
  EXPECT_EQ(second.host, (TimeSpan{us(192), us(292)}));
  EXPECT_EQ(second.first_work, 5U);
  EXPECT_EQ(second.last_work, 10U);
  EXPECT_EQ(second.busy, us(34 + 10 + 1));
  EXPECT_EQ(idle(second.idle, GapCause::device), us(3));            // before c
  EXPECT_EQ(idle(second.idle, GapCause::synchronization), us(13));  // before d
  EXPECT_EQ(idle(second.idle, GapCause::launch), us(39));           // before the next copy
  EXPECT_EQ(idle(second.idle, GapCause::copy), us(2));              // part of the busy time
  EXPECT_EQ(idle(second.idle, GapCause::data), 0);
  EXPECT_EQ(second.kernels, 4U);
  EXPECT_EQ(second.launches, 5U);
  EXPECT_EQ(second.graph_launches, 0U);
  EXPECT_EQ(second.synchronizations, 1U);
  EXPECT_EQ(second.in_launches, us(2 + 4 * 3));
}

TEST(AnalysisTest, SumsUpItsIterations) {
  const Analysis analysis = analyse(program({100, 104, 100, 96, 120, 100}));  // the last one's end is not seen
  ASSERT_THAT(analysis.iterations, SizeIs(5));
  EXPECT_EQ(analysis.duration, us(100));
  EXPECT_EQ(analysis.busy, us(45));
  EXPECT_DOUBLE_EQ(analysis.utilisation, 5 * 45.0 / 520);
  EXPECT_NEAR(analysis.jitter, std::sqrt((16 + 0 + 16 + 64 + 256) / 5.0) / 104, 1e-12);
  EXPECT_EQ(idle(analysis.idle, GapCause::launch), us(39 + 4));
  EXPECT_EQ(idle(analysis.idle, GapCause::synchronization), us(13));
  EXPECT_DOUBLE_EQ(analysis.kernels, 4);
  EXPECT_DOUBLE_EQ(analysis.launches, 5);
  EXPECT_EQ(analysis.in_launches, us(14));
  EXPECT_EQ(analysis.durations.kernels, 20U);
  EXPECT_EQ(analysis.durations.median, us(15));
  EXPECT_THAT(analysis.waits, SizeIs(1));
}

TEST(AnalysisTest, AddsUpToTheIterationsWhateverTheCauses) {
  const Analysis analysis = analyse(program({100, 104, 100, 96, 120, 100}));
  for (const Iteration& iteration : analysis.iterations) {
    Nanoseconds sum = iteration.busy;
    for (const GapCause cause : {GapCause::launch, GapCause::synchronization, GapCause::data, GapCause::device}) {
      sum += idle(iteration.idle, cause);
    }
    EXPECT_EQ(sum, iteration.time.duration());
  }
}

// 45 us of work in an iteration of 100 us, which takes 60 us where nothing records it.
TEST(AnalysisTest, AShareOfTheTimeIsThatOfTheUnrecordedIterationWhereThatIsKnown) {
  Timeline timeline = program({100, 100, 100, 100, 100});
  EXPECT_EQ(analyse(timeline).unrecorded, us(100));
  timeline.unrecorded = us(60);
  const Analysis analysis = analyse(timeline);
  EXPECT_EQ(analysis.duration, us(100));
  EXPECT_EQ(analysis.unrecorded, us(60));
  EXPECT_DOUBLE_EQ(analysis.utilisation, 45.0 / 60);
  timeline.unrecorded = us(40);  // timed in a moment when the device was faster
  EXPECT_EQ(analyse(timeline).utilisation, 1);
}

// Steps of 100 us of two halves each, 80 us where nothing records them.
TEST(AnalysisTest, TheUnrecordedTimeIsThatOfTheRunsOfProfileAndOfNoOtherIterations) {
  TimelineBuilder t;
  for (int i = 0; i < 6; ++i) {
    const double at = 100.0 * i;
    t.annotation(kProfiledStep, at, 95);
    for (const double half : {at, at + 50}) {
      t.annotation("half", half, 45);
      t.kernel("k", half + 10, 20).launched(half + 5, 3);
    }
  }
  Timeline timeline = t.build();
  EXPECT_NE(analyse(timeline).range, kProfiledStep) << "found by itself";
  timeline.unrecorded = us(80);
  EXPECT_EQ(analyse(timeline).range, kProfiledStep);
  EXPECT_EQ(analyse(timeline).duration, us(100));
  EXPECT_EQ(analyse(timeline).unrecorded, us(80));
  EXPECT_EQ(analyse(timeline, {.range = "half"}).unrecorded, us(50));
}

TEST(AnalysisTest, CountsEachDevicesOwnCalls) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    t.on_device(0).kernel("a", 100 * i + 10, 20).launched(100 * i).kernel("b", 100 * i + 40, 20).launched(100 * i + 4);
    t.on_device(1).kernel("a", 100 * i + 10, 50).launched(100 * i + 8);
  }
  const Timeline timeline = t.build();
  const Analysis first = analyse(timeline);
  EXPECT_EQ(first.device, 0);
  EXPECT_DOUBLE_EQ(first.launches, 2);
  EXPECT_EQ(first.busy, us(40));
  const Analysis second = analyse(timeline, {.device = 1});
  EXPECT_EQ(second.device, 1);
  EXPECT_DOUBLE_EQ(second.launches, 1);
  EXPECT_EQ(second.busy, us(50));
}

TEST(AnalysisTest, KeepsProcessesApart) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    t.in_process(0).annotation("step", 100 * i, 90).kernel("a", 100 * i + 10, 20).launched(100 * i + 1);
    t.in_process(1).annotation("other", 100 * i, 90).kernel("a", 100 * i + 30, 10).launched(100 * i + 1);
    t.synchronize(100 * i + 8, 34).kernel("b", 100 * i + 50, 10).launched(100 * i + 44);
  }
  const Timeline timeline = t.build();
  const Analysis one = analyse(timeline, {.process = 0});
  EXPECT_EQ(one.process, 0);
  EXPECT_EQ(one.busy, us(20));
  EXPECT_THAT(one.waits, SizeIs(0));
  ASSERT_THAT(one.regions, SizeIs(1));
  EXPECT_EQ(one.regions[0].name, "step");
  const Analysis other = analyse(timeline);
  EXPECT_EQ(other.process, 1);
  EXPECT_EQ(other.busy, us(20));
  EXPECT_EQ(idle(other.idle, GapCause::synchronization), us(10));
  EXPECT_THAT([&] { (void)analyse(timeline, {.range = "step", .process = 1}); },
              ThrowsMessage<UsageError>(HasSubstr("process 1 has no annotation 'step'")));
}

TEST(AnalysisTest, OfAGraphedProgramCountsItsGraphLaunches) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    t.kernel("a", 100 * i + 10, 30).kernel("b", 100 * i + 41, 30).kernel("c", 100 * i + 72, 30);
    t.launched_by_graph(1, 3, 100 * i - 50, 6);  // long before it begins
  }
  const Analysis analysis = analyse(t.build());
  ASSERT_THAT(analysis.iterations, SizeIs(4));
  EXPECT_DOUBLE_EQ(analysis.kernels, 3);
  EXPECT_DOUBLE_EQ(analysis.launches, 1);
  EXPECT_DOUBLE_EQ(analysis.graph_launches, 1);
  EXPECT_EQ(analysis.in_launches, us(6));
  EXPECT_EQ(idle(analysis.idle, GapCause::device), us(1 + 1 + 8));
}

TEST(AnalysisTest, OfACpuCountsOperationsAndTheTimeBetweenThem) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) t.cpu_work("aten::mm", 50 * i, 20).cpu_work("aten::add", 50 * i + 25, 10);
  const Analysis analysis = analyse(t.build());
  EXPECT_EQ(analysis.device, -1);
  EXPECT_EQ(analysis.duration, us(50));
  EXPECT_EQ(analysis.busy, us(30));
  EXPECT_EQ(idle(analysis.idle, GapCause::launch), us(20));
  EXPECT_DOUBLE_EQ(analysis.kernels, 2);
  EXPECT_DOUBLE_EQ(analysis.launches, 0);
}

TEST(AnalysisTest, OfWorkThatNeverRepeatsIsOneIteration) {
  TimelineBuilder t;
  t.kernel("a", 10, 10).launched(0).kernel("b", 30, 10).launched(24).synchronize(29, 20);
  const Analysis analysis = analyse(t.build());
  EXPECT_EQ(analysis.by, IterationsBy::nothing);
  EXPECT_THAT(analysis.problem, HasSubstr("the work never repeats: 2 kernels seen once"));
  ASSERT_THAT(analysis.iterations, SizeIs(1));
  EXPECT_EQ(analysis.duration, us(30));
  EXPECT_EQ(analysis.busy, us(20));
  EXPECT_EQ(analysis.jitter, 0);
  EXPECT_DOUBLE_EQ(analysis.launches, 2);
  EXPECT_DOUBLE_EQ(analysis.synchronizations, 1);
}

TEST(AnalysisTest, ReportsWarmupThatItLeftOut) {
  const Analysis analysis = analyse(program({300, 100, 100, 100, 100}));
  EXPECT_EQ(analysis.warmup, 1U);
  EXPECT_THAT(analysis.iterations, SizeIs(3));
  EXPECT_EQ(analysis.duration, us(100));
}

TEST(AnalysisTest, CountsACopyThatWaitsAsLaunchAndAsWait) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    t.kernel("a", 100 * i + 10, 20).launched(100 * i + 4).copy_out(100 * i + 30, 2).waited_for(100 * i + 8, 26);
  }
  const Analysis analysis = analyse(t.build());
  EXPECT_DOUBLE_EQ(analysis.launches, 2);
  EXPECT_DOUBLE_EQ(analysis.synchronizations, 1);
  EXPECT_EQ(analysis.in_launches, us(3));
  EXPECT_EQ(idle(analysis.idle, GapCause::synchronization), us(78));
}

TEST(AnalysisTest, RefusesATimelineThatIsNotSorted) {
  Timeline timeline = program({100, 100, 100});
  std::swap(timeline.work[0], timeline.work[3]);
  timeline.source = "trace.json";
  EXPECT_THAT([&] { (void)analyse(timeline); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("not in the order in which they began"),
                                              HasSubstr("where: trace.json"), HasSubstr("call Timeline::sort()"))));
}

TEST(AnalysisTest, FindsTheIterationsOfALongProfile) {
  const profiling::LargeTimeline large(50);
  const Analysis analysis = analyse(large.timeline());
  ASSERT_THAT(analysis.iterations, SizeIs(49));
  EXPECT_DOUBLE_EQ(analysis.kernels, 1000);
  EXPECT_EQ(analysis.duration, us(1000 * 7 + 50));
  EXPECT_EQ(analysis.busy, us(4000));
  EXPECT_EQ(analysis.iterations[1].time.begin, us(7050 + 5));  // where the pause of 50 us is
}

TEST(GapCauseTest, HasWords) {
  EXPECT_STREQ(in_words(GapCause::launch), "launch");
  EXPECT_STREQ(in_words(GapCause::synchronization), "synchronization");
  EXPECT_STREQ(in_words(GapCause::data), "data");
  EXPECT_STREQ(in_words(GapCause::copy), "copy");
  EXPECT_STREQ(in_words(GapCause::device), "device");
}

}  // namespace
}  // namespace pianola::analysis_test
