#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/show/profile_report.hpp>

#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::fragments_test {
namespace {

using profiling::TimelineBuilder;
using profiling::us;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Judged {
  explicit Judged(const TimelineBuilder& builder)
      : timeline(builder.build()),
        analysis(analyse(timeline, {.range = "step"})),
        decision(decide(timeline, analysis)) {}
  Timeline timeline;
  Analysis analysis;
  Decision decision;
};

// A graph of `kernels` of 10 us, launched 5 us before the first begins.
void graph(TimelineBuilder& t, std::uint64_t number, double at, int kernels) {
  for (int i = 0; i < kernels; ++i) t.kernel("gemm", at + 10 * i, 10);
  t.launched_by_graph(number, static_cast<std::size_t>(kernels), at - 5, 4);
}

// Three graphs: the host reads a value behind the first (40 us without work), and issues a kernel of its own behind the
// second (10 us before it, 5 us behind it).
TimelineBuilder three_graphs() {
  TimelineBuilder t;
  for (int i = 0; i < 6; ++i) {
    const double begin = 300 * i;
    t.annotation("step", begin, 290);
    graph(t, 1, begin + 10, 5);
    t.operation("aten::item", begin + 15, 50).synchronize(begin + 20, 42);
    graph(t, 2, begin + 100, 6);
    t.operation("aten::cumsum", begin + 160, 8).kernel("scan", begin + 170, 5).launched(begin + 162);
    graph(t, 3, begin + 180, 11);
  }
  return t;
}

TEST(FragmentsTest, SeveralGraphsAreToBeJoinedAndWhatCutsThemIsNamed) {
  const Judged step(three_graphs());
  ASSERT_TRUE(step.decision.fragments);
  const GraphFragments& fragments = *step.decision.fragments;
  EXPECT_EQ(fragments.launches, 3);
  EXPECT_NEAR(fragments.kernels, 22.0 / 3, 1e-9);
  EXPECT_EQ(fragments.idle, us(40 + 15));
  ASSERT_EQ(fragments.cuts.size(), 2U);
  EXPECT_EQ(fragments.cuts[0].what, "the host waits in cudaStreamSynchronize (aten::item, in 'step')");
  EXPECT_EQ(fragments.cuts[0].per_iteration, 1);
  EXPECT_EQ(fragments.cuts[0].idle, us(40));
  EXPECT_EQ(fragments.cuts[1].what, "the host issues work itself, first in aten::cumsum, in 'step'");
  EXPECT_EQ(fragments.cuts[1].idle, us(15));
  EXPECT_EQ(fragments.joined, step.analysis.unrecorded - us(55) + 2 * 250) << "two gaps between nodes in their place";
  EXPECT_EQ(step.decision.verdict, GraphVerdict::fragmented);
  EXPECT_EQ(
      step.decision.headline,
      "Join its graphs: 1.22 times as fast, 246 us instead of 300 us per iteration. It has 3 graphs per iteration, of "
      "7.33 kernels each.");
  EXPECT_THAT(step.decision.obstacles,
              ElementsAre(HasSubstr("keep the value on the device"), HasSubstr("capture that work as well")));
}

TEST(FragmentsTest, TheReportHasALineForEachCut) {
  const Judged step(three_graphs());
  const std::string text = profile_report(step.timeline, step.analysis, step.decision, 0).to_text();
  EXPECT_THAT(text, HasSubstr("What cuts its graphs apart"));
  EXPECT_THAT(text,
              HasSubstr("the host waits in cudaStreamSynchronize (aten::item, in 'step')           1.00       40.0"));
  EXPECT_THAT(text, HasSubstr("join the graphs"));
}

TEST(FragmentsTest, GraphsThatFollowAtOnceAreLeftAsTheyAre) {
  TimelineBuilder t;
  for (int i = 0; i < 6; ++i) {
    const double begin = 300 * i;
    t.annotation("step", begin, 290);
    graph(t, 1, begin + 10, 14);
    graph(t, 2, begin + 151, 14);
  }
  const Judged step(t);
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graphed);
  ASSERT_TRUE(step.decision.fragments);
  EXPECT_EQ(step.decision.fragments->cuts[0].what, "nothing but the next launch");
  EXPECT_THAT(step.decision.headline, StartsWith("Graphs do the work already"));
  EXPECT_THAT(step.decision.reasons.back(), HasSubstr("There are 2 graphs per iteration"));
  EXPECT_THAT(step.decision.obstacles, IsEmpty());
}

TEST(FragmentsTest, OneGraphHasNothingToBeJoinedWith) {
  TimelineBuilder t;
  for (int i = 0; i < 6; ++i) {
    t.annotation("step", 300 * i, 290);
    graph(t, 1, 300 * i + 10, 20);
  }
  const Judged step(t);
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graphed);
  EXPECT_FALSE(step.decision.fragments);
}

}  // namespace
}  // namespace pianola::fragments_test
