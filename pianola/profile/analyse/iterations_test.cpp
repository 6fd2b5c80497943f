#include <pianola/profile/analyse/iterations.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::iterations_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

FoundIterations found_in(const Timeline& timeline, const std::string& range = "") {
  const DeviceWorkList list = choose_device(timeline, -1, -2);
  return find_iterations(list, Issued(list), range);
}

// When the iterations begin on the device, and when the last one ends, in microseconds.
std::vector<double> begins(const FoundIterations& found) {
  std::vector<double> times;
  for (const Boundary& boundary : found.boundaries) times.push_back(static_cast<double>(boundary.device) / 1000);
  return times;
}

/// A program whose kernels each take 5 us, are issued 10 us after each other, and begin 6 us after their call does.
class Program {
 public:
  Program& run(const std::vector<std::string>& kernels) {
    for (const std::string& kernel : kernels) {
      timeline.kernel(kernel, time + 6, 5).launched(time, 3);
      time += 10;
    }
    return *this;
  }
  // Copies the batch, trains three kernels, and does something else for 50 us: 80 us.
  Program& iteration() {
    timeline.copy_in(time + 6, 5).launched(time, 3);
    time += 10;
    run({"forward", "backward"});
    return pause(50);
  }
  Program& pause(double for_us) {
    time += for_us;
    return *this;
  }

  TimelineBuilder timeline;
  double time = 0;
};

// As the recorder sees training: the thread of autograd takes longer to begin than the next iteration does.
TEST(IterationsTest, BeginAfterTheOptimizersKernelsWhereNoRangeNamesThem) {
  Program p;
  for (int i = 0; i < 5; ++i) {
    p.run({"forward", "loss"}).pause(200).run({"backward", "multi_tensor_apply_kernel<FusedAdam>"}).pause(50);
  }
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_THAT(begins(found), ElementsAre(6, 296, 586, 876, 1166));
}

TEST(IterationsTest, BeginWithTheFirstWorkAfterTheLargestGap) {
  Program p;
  for (int i = 0; i < 5; ++i) p.iteration();
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_EQ(found.by, IterationsBy::repetition);
  EXPECT_EQ(found.problem, "");
  EXPECT_THAT(begins(found), ElementsAre(6, 86, 166, 246, 326));  // the fifth one's end is not seen
  EXPECT_EQ(found.boundaries[1].host, us(80));
}

TEST(IterationsTest, OfWhichOnlyThreeAreThereEndWithTheWorkOfTheLast) {
  Program p;
  for (int i = 0; i < 3; ++i) p.iteration();
  EXPECT_THAT(begins(found_in(p.timeline.build())), ElementsAre(6, 86, 166, 191));
}

TEST(IterationsTest, DoNotMindOtherWorkBeforeNorACutTail) {
  Program p;
  p.run({"fill", "fill", "fill", "normal", "forward", "tune", "tune"});  // 70 us
  for (int i = 0; i < 4; ++i) p.iteration();
  p.run({"forward"});
  EXPECT_THAT(begins(found_in(p.timeline.build())), ElementsAre(76, 156, 236, 316));
}

TEST(IterationsTest, DropTheRestOfOneThatWasUnderWay) {
  Program p;
  p.run({"backward"}).pause(50);
  for (int i = 0; i < 4; ++i) p.iteration();
  EXPECT_THAT(begins(found_in(p.timeline.build())), ElementsAre(66, 146, 226, 306));
}

TEST(IterationsTest, DropSlowOnesAtTheBeginAsWarmup) {
  Program p;
  p.iteration().pause(200).iteration().pause(90);  // 280 and 170 us
  for (int i = 0; i < 5; ++i) p.iteration();
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_EQ(found.warmup, 2U);
  EXPECT_THAT(begins(found), ElementsAre(456, 536, 616, 696, 776));
}

TEST(IterationsTest, MayReadTheLossNowAndThen) {
  Program p;
  for (int i = 0; i < 31; ++i) {
    p.iteration();
    if (i % 10 == 9) p.timeline.copy_out(p.time + 6, 2).launched(p.time, 3), p.pause(30);
  }
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_EQ(found.count(), 30U);
  EXPECT_EQ(found.boundaries[9].device, us(6 + 9 * 80));
  EXPECT_EQ(found.boundaries[10].device, us(6 + 10 * 80 + 30));  // the copy is the tenth one's
}

TEST(IterationsTest, MayChooseAnotherKernelOnce) {
  Program p;
  for (int i = 0; i < 9; ++i) {
    if (i == 4) p.run({"other", "forward", "backward"}).pause(50);
    if (i != 4) p.iteration();
  }
  EXPECT_EQ(found_in(p.timeline.build()).count(), 8U);
}

TEST(IterationsTest, AreNotTheLayersInside) {
  Program p;
  for (int i = 0; i < 4; ++i) {
    p.run({"embed"});
    for (int layer = 0; layer < 12; ++layer) p.run({"gemm", "norm", "gemm", "gelu"});
    p.run({"head"}).pause(20);
  }
  EXPECT_THAT(begins(found_in(p.timeline.build())), ElementsAre(6, 526, 1046, 1566));
}

TEST(IterationsTest, DoNotMindStreamsThatRunSideBySide) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    const double at = 100 * i;
    t.on_stream(7).kernel("a", at + 10, 20).launched(at).kernel("b", at + 30, 20).launched(at + 8);
    // The reduction runs before b, beside it, or after it.
    t.on_stream(8).kernel("reduce", at + 25 + 5 * i, 10).launched(at + 4);
  }
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(10, 110, 210, 310, 410));
}

TEST(IterationsTest, OfAGraphedProgramAreThoseOfItsLaunches) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    const double at = 100 * i;
    t.copy_in(at + 5, 2).launched(at);
    t.kernel("a", at + 20, 5);
    // Branches of the graph begin in either order.
    t.on_stream(7).kernel("b", at + 30, 5).on_stream(8).kernel("c", at + (i % 2 == 0 ? 31 : 29), 5).on_stream(7);
    t.launched_by_graph(3, 3, at + 5);
  }
  const FoundIterations found = found_in(t.build());
  EXPECT_EQ(found.by, IterationsBy::repetition);
  EXPECT_THAT(begins(found), ElementsAre(5, 105, 205, 305, 405));
}

TEST(IterationsTest, OfOneGraphAloneAreItsLaunches) {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.kernel("a", 50 * i + 10, 5).kernel("a", 50 * i + 16, 5).kernel("b", 50 * i + 22, 5);
    t.launched_by_graph(1, 3, 50 * i);
  }
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(10, 60, 110, 160));
}

TEST(IterationsTest, OfTwoGraphsInTurnAreTwoLaunches) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) {
    const double at = 100 * i;
    t.kernel("a", at + 10, 5).kernel("b", at + 16, 5).launched_by_graph(1, 2, at);
    t.kernel("c", at + 30, 5).kernel("d", at + 36, 5).launched_by_graph(2, 2, at + 20);
  }
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(10, 110, 210, 310, 410));
}

TEST(IterationsTest, AreFoundWithoutCallsToo) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i) t.kernel("a", 50 * i, 5).kernel("b", 50 * i + 10, 5).kernel("c", 50 * i + 20, 5);
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(0, 50, 100, 150, 200));
}

TEST(IterationsTest, OfACpuBeginWithAnOperation) {
  TimelineBuilder t;
  for (int i = 0; i < 5; ++i)
    t.cpu_work("aten::mm", 50 * i, 5).on_thread(2).cpu_work("MmBackward", 50 * i + 8, 5).on_thread(1);
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(0, 50, 100, 150, 200));
}

TEST(IterationsTest, OfWorkThatNeverRepeatsAreOneAndAProblem) {
  Program p;
  for (int i = 0; i < 37; ++i) p.run({"kernel" + std::to_string(i)});
  p.timeline.annotation("all", -10, 500);
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_EQ(found.by, IterationsBy::nothing);
  EXPECT_EQ(found.problem,
            "the work never repeats: 37 kernels seen once; profile at least 3 iterations, or name the annotation that "
            "begins one");
  EXPECT_THAT(begins(found), ElementsAre(6, 371));
  EXPECT_EQ(found.on_host(), (TimeSpan{us(-10), us(490)}));
}

TEST(IterationsTest, OfTwoRepetitionsAreOneAndAProblem) {
  Program p;
  p.iteration().iteration();
  EXPECT_THAT(found_in(p.timeline.build()).problem,
              HasSubstr("no sequence of work repeats 3 times or more among 6 pieces of work of 3 names; profile"));
  const Timeline cpu = TimelineBuilder().cpu_work("aten::mm", 0, 5).build();
  EXPECT_THAT(found_in(cpu).problem, HasSubstr("the work never repeats: 1 operation seen once; profile"));
}

TEST(IterationsTest, BeginWithTheStepsOfTorchsProfiler) {
  Program p;
  for (int i = 0; i < 5; ++i) {
    p.timeline.annotation("ProfilerStep#" + std::to_string(i + 7), p.time - 4, 80);
    p.iteration();
  }
  const FoundIterations found = found_in(p.timeline.build());
  EXPECT_EQ(found.by, IterationsBy::range);
  EXPECT_EQ(found.range, "ProfilerStep");
  EXPECT_THAT(begins(found), ElementsAre(6, 86, 166, 246, 326));
  EXPECT_EQ(found.boundaries[1].host, us(76));
}

TEST(IterationsTest, BelongToTheStepThatIssuedThemEvenWhereTheDeviceIsLate) {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.annotation("ProfilerStep#" + std::to_string(i), 20 * i, 20);
    t.kernel("a", 100 + 100 * i, 50).launched(20 * i + 2).kernel("b", 150 + 100 * i, 50).launched(20 * i + 8);
  }
  EXPECT_THAT(begins(found_in(t.build())), ElementsAre(100, 200, 300, 400));
}

TEST(IterationsTest, AreNotTwoStepsOfTorchsProfiler) {
  Program p;
  for (int i = 0; i < 8; ++i) {
    if (i % 4 == 0) p.timeline.annotation("ProfilerStep#" + std::to_string(i), p.time, 320);
    p.iteration();
  }
  EXPECT_EQ(found_in(p.timeline.build()).by, IterationsBy::repetition);
}

// Each step of 160 us holds two of what repeats; step 2 is entered once more inside itself.
Timeline with_ranges() {
  Program p;
  for (int i = 0; i < 5; ++i) {
    p.timeline.annotation("train step", p.time - 2, 150);
    if (i == 2) p.timeline.annotation("train step", p.time + 40, 50);
    p.iteration().iteration();
    p.timeline.on_thread(9).annotation("log", p.time - 5, 4).on_thread(1);
  }
  p.timeline.annotation("save", p.time, 50);
  return p.timeline.build();
}

TEST(IterationsTest, BeginWithTheRangeOfTheCaller) {
  const FoundIterations found = found_in(with_ranges(), "train step");
  EXPECT_EQ(found.by, IterationsBy::range);
  EXPECT_EQ(found.range, "train step");
  EXPECT_THAT(begins(found), ElementsAre(6, 166, 326, 486, 646));
}

TEST(IterationsTest, LastFromOneEntryOfARangeToTheNextWhateverThreadItIsOn) {
  EXPECT_THAT(begins(found_in(with_ranges(), "log")), ElementsAre(166, 326, 486, 646));
}

TEST(IterationsTest, OfARangeWithCountersAreNamedWithout) {
  Program p;
  for (int i = 0; i < 2; ++i) {
    p.timeline.annotation("batch#" + std::to_string(i), p.time, 80);
    p.iteration();
  }
  EXPECT_THAT(begins(found_in(p.timeline.build(), "batch")), ElementsAre(6, 86, 111));
}

TEST(IterationsTest, OfARangeThatIsNotThereNameTheSimilarOnes) {
  EXPECT_THAT(
      [] { (void)found_in(with_ranges(), "trainstep"); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("process 0 has no annotation 'trainstep'; did you mean 'train step'?"),
                                      HasSubstr("take one of 'train step', 'log', 'save'"), Not(HasSubstr("...")))));
  Program bare;
  bare.iteration();
  EXPECT_THAT([&] { (void)found_in(bare.timeline.build(), "step"); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("process 0 has no annotation 'step', nor any other"), HasSubstr("record_function"))));
  Program many;
  many.iteration();
  for (int i = 0; i < 20; ++i) many.timeline.annotation("range " + std::to_string(i), i, 1);
  EXPECT_THAT([&] { (void)found_in(many.timeline.build(), "step"); }, ThrowsMessage<UsageError>(HasSubstr("', ...")));
}

TEST(IterationsTest, OfARangeWithoutWorkAreRefused) {
  EXPECT_THAT([] { (void)found_in(with_ranges(), "save"); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("nothing was issued to device 0 in 'save'"),
                                              HasSubstr("name the annotation around the work"))));
}

// A long phase of work that never repeats, and a few copies at the end.
TEST(IterationsTest, ThatAreLittleOfTheWorkAreNone) {
  TimelineBuilder t;
  double at = 0;
  for (int i = 0; i < 50; ++i, at += 100) t.kernel("once " + std::to_string(i), at + 5, 90).launched(at);
  for (int i = 0; i < 10; ++i, at += 20) t.kernel("compare", at + 5, 10).launched(at);
  const FoundIterations found = found_in(t.build());
  EXPECT_EQ(found.by, IterationsBy::nothing);
  EXPECT_THAT(found.problem, HasSubstr("what repeats, 9 times, is only 2.0 % of the device's work"));
  EXPECT_THAT(found.problem, HasSubstr("name the annotation that begins an iteration"));
}

}  // namespace
}  // namespace pianola::profiling::iterations_test
