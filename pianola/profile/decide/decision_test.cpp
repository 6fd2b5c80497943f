#include <pianola/profile/decide/decision.hpp>

#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::decision_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Nanoseconds us(double time) { return static_cast<Nanoseconds>(time * 1000); }

using profiling::testing::TrainingShape;

struct Judged {
  explicit Judged(const profiling::testing::TrainingShape& shape, Nanoseconds unrecorded = 0)
      : timeline(profiling::testing::training_timeline(shape)) {
    timeline.unrecorded = unrecorded;
    analysis = analyse(timeline);
    decision = decide(timeline, analysis);
  }
  [[nodiscard]] const ScopePrediction& scope(GraphScope scope) const {
    return decision.scopes.at(static_cast<std::size_t>(scope));
  }
  Timeline timeline;
  Analysis analysis;
  Decision decision;
};

// 4 layers x 10 kernels forward, 80 backward, 5 of the optimizer: 125 of 4 us, one every 10 us, and a pause of 50 us.
TEST(DecisionTest, ALaunchBoundStepIsToBeGraphedWhole) {
  const Judged step({});
  EXPECT_EQ(step.analysis.duration, us(125 * 10 + 50));
  EXPECT_EQ(step.analysis.busy, us(125 * 4));
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graph);
  // In a graph: 125 x 4 us of work and 125 x 0.25 us between nodes.
  EXPECT_EQ(step.scope(GraphScope::iteration).expected, us(125 * 4.25));
  EXPECT_EQ(step.scope(GraphScope::iteration).low, us(125 * 4));
  EXPECT_EQ(step.scope(GraphScope::iteration).high, us(125 * 4.6));
  EXPECT_NEAR(step.scope(GraphScope::iteration).speedup, 1300 / 531.25, 1e-6);
  EXPECT_THAT(step.decision.headline, StartsWith("Graph it, "));
  EXPECT_THAT(step.decision.obstacles, IsEmpty());
}

// The host issues 5 kernels of the optimizer itself beside the graph, which is less than the device takes: the smaller
// scope is as good.
TEST(DecisionTest, OfScopesThatAreEquallyFastTheSmallestIsTaken) {
  const Judged step({});
  EXPECT_EQ(step.scope(GraphScope::without_optimizer).expected, step.scope(GraphScope::iteration).expected);
  EXPECT_EQ(step.scope(GraphScope::forward_backward).expected, step.scope(GraphScope::iteration).expected);
  EXPECT_EQ(step.decision.scopes[step.decision.best].scope, GraphScope::layers);
  EXPECT_EQ(step.scope(GraphScope::layers).host_launches, 2 * 4 + 5);
}

// 60 kernels of the optimizer at 10 us each, and a pause of 50 us more than between two launches, are more than the device
// needs.
TEST(DecisionTest, AnOptimizerThatTheHostIssuesSlowlyBelongsInside) {
  const Judged step({.layers = 2, .kernels_per_layer = 4, .optimizer_kernels = 60});
  const Nanoseconds all = us((24 + 60) * 4.25);
  EXPECT_EQ(step.scope(GraphScope::iteration).expected, all);
  EXPECT_EQ(step.scope(GraphScope::without_optimizer).expected, us(7 + 60 * 10 + 50));
  EXPECT_EQ(step.decision.scopes[step.decision.best].scope, GraphScope::iteration);
}

// 1300 us recorded, 1040 us otherwise: the host is a fifth faster, the device as fast.
TEST(DecisionTest, AGraphIsHeldAgainstTheTimeThatTheStepTakesUnrecorded) {
  const TrainingShape host_bound_optimizer{.layers = 2, .kernels_per_layer = 4, .optimizer_kernels = 60};
  const Judged step({}, us(1040));
  EXPECT_EQ(step.scope(GraphScope::iteration).expected, us(125 * 4.25));
  EXPECT_NEAR(step.scope(GraphScope::iteration).speedup, 1040 / 531.25, 1e-6);
  EXPECT_THAT(step.decision.headline, HasSubstr("instead of 1.04 ms per iteration"));
  EXPECT_THAT(step.decision.reasons, Contains(HasSubstr("While it was recorded it took 1.30 ms")));
  EXPECT_EQ(step.decision.model.launch, us(8)) << "of 10 recorded";

  const Judged recorded(host_bound_optimizer);
  const Judged timed(host_bound_optimizer, recorded.analysis.duration / 2);
  EXPECT_EQ(recorded.scope(GraphScope::without_optimizer).expected, us(7 + 60 * 10 + 50));
  EXPECT_EQ(timed.scope(GraphScope::without_optimizer).expected, us(7 + 60 * 5 + 50));
}

// Recorded, the host keeps the device waiting 62 % of the time; unrecorded it does not.
TEST(DecisionTest, ADeviceThatIsIdleOnlyWhileItIsRecordedIsLeftAlone) {
  const Judged step({}, us(510));
  EXPECT_EQ(Judged({}).decision.verdict, GraphVerdict::graph);
  EXPECT_EQ(step.decision.verdict, GraphVerdict::leave);
  EXPECT_EQ(step.decision.headline,
            "Leave it: the device is busy 98 % of the time, so launches do not keep it waiting.");
}

TEST(DecisionTest, ABusyDeviceIsLeftAlone) {
  const Judged step({.kernel = 40});
  EXPECT_EQ(step.decision.verdict, GraphVerdict::leave);
  EXPECT_THAT(step.decision.headline, StartsWith("Leave it: the device is busy "));
}

// Two calls per iteration, with which a graph's one cannot compete.
TEST(DecisionTest, AGraphThatReplacesAFewCallsIsNotWorthIt) {
  const Judged step({.layers = 0, .optimizer_kernels = 2, .pace = 40});
  ASSERT_GT(step.scope(GraphScope::iteration).speedup, 1.15);
  EXPECT_EQ(step.decision.verdict, GraphVerdict::leave);
  EXPECT_EQ(step.decision.headline, "Leave it: an iteration issues 2 calls, and launching a graph is a call, too.");
}

// Work of 625 us at most, and 20 ms in which the host loads the next batch: with a graph the device waits as well.
TEST(DecisionTest, AGraphDoesNotHelpADeviceThatWaitsForData) {
  const Judged step({.pace = 5, .pause = 20'000, .data = 19'950});
  EXPECT_EQ(step.decision.verdict, GraphVerdict::leave);
  EXPECT_EQ(step.decision.headline, "Leave it: a graph does not change why the device waits: the loading of data.");
}

TEST(DecisionTest, AWaitInTheMiddleStandsInTheWayOfTheWholeIterationButNotOfLayers) {
  const Judged step({.reads_inside = true});
  EXPECT_THAT(step.decision.obstacles,
              ElementsAre(AllOf(
                  HasSubstr("the host waits in cudaStreamSynchronize (aten::item) in the middle of the iteration"),
                  HasSubstr("keep the value on the device"))));
  EXPECT_THAT(step.scope(GraphScope::iteration).obstacle, HasSubstr("cudaStreamSynchronize"));
  EXPECT_THAT(step.scope(GraphScope::without_optimizer).obstacle, HasSubstr("cudaStreamSynchronize"));
  EXPECT_EQ(step.scope(GraphScope::forward_backward).obstacle, "");
  EXPECT_EQ(step.scope(GraphScope::layers).obstacle, "");
}

// The host goes on only when the device is done: one launch of 7 us, and a pause of 50 us instead of the 6 us between two
// launches, are added to the device's time.
TEST(DecisionTest, AWaitAtTheEndStandsInNoScopesWayButCostsALaunch) {
  const Judged step({.reads_loss = true});
  EXPECT_THAT(step.decision.obstacles, IsEmpty());
  EXPECT_EQ(step.scope(GraphScope::iteration).expected, us(125 * 4.25 + 7 + 44));
}

TEST(DecisionTest, WorkThatDiffersFromIterationToIterationIsSaid) {
  const Judged step({.iterations = 9, .extra_kernels = 3});
  ASSERT_EQ(step.analysis.by, IterationsBy::repetition);
  EXPECT_THAT(step.decision.obstacles,
              Contains(AllOf(HasSubstr("the work differs from iteration to iteration"), HasSubstr("Buckets"))));
}

TEST(DecisionTest, WithoutRangesOnlyTheWholeIterationAndTheOptimizersKernelsAreKnown) {
  const Judged step({.ranges = false});
  EXPECT_EQ(step.scope(GraphScope::layers).expected, 0);
  EXPECT_THAT(step.scope(GraphScope::layers).obstacle, HasSubstr("names no layers"));
  EXPECT_EQ(step.scope(GraphScope::forward_backward).expected, 0);
  EXPECT_THAT(step.scope(GraphScope::forward_backward).obstacle, HasSubstr("record operations"));
  EXPECT_EQ(step.scope(GraphScope::without_optimizer).host_launches, 1 + 5);
  EXPECT_EQ(step.scope(GraphScope::iteration).expected, us(125 * 4.25));
}

// As C++ does, and Python without modules: what is neither backward nor the optimizer's is taken for the forward pass.
TEST(DecisionTest, WithoutModulesTheForwardPassIsWhatIsLeft) {
  Timeline timeline = profiling::testing::training_timeline({.pace = 40});
  std::erase_if(timeline.ranges, [](const HostRange& range) { return range.kind == HostRange::Kind::module; });
  const Decision decision = decide(timeline, analyse(timeline));
  const ScopePrediction& callable = decision.scopes[static_cast<std::size_t>(GraphScope::forward_backward)];
  EXPECT_EQ(callable.host_launches, 2 + 5);
  EXPECT_EQ(callable.expected, us(125 * 4.25)) << "the device's: a callable of 25 us and 5 launches of 40 us take less";
}

// A recording of the device alone says nothing of the host, whose calls a graph would replace.
TEST(DecisionTest, WithoutTheCallsThatLaunchNothingCanBeTold) {
  Timeline timeline = profiling::testing::training_timeline({.ranges = false});
  timeline.calls.clear();
  const Decision decision = decide(timeline, analyse(timeline));
  EXPECT_EQ(decision.verdict, GraphVerdict::unknown);
  EXPECT_EQ(decision.headline,
            "No verdict: the profile has 125 kernels per iteration and none of the calls that launch them. Record "
            "the host's calls of CUDA as well.");
}

TEST(DecisionTest, AGraphedProgramIsSaidToBeOne) {
  const Judged step({.graphed = true});
  EXPECT_EQ(step.decision.verdict, GraphVerdict::graphed);
  EXPECT_EQ(step.decision.headline, "Graphs do the work already: 100 % of the kernels, in 1 launch per iteration.");
  EXPECT_THAT(step.decision.scopes, IsEmpty());
}

TEST(DecisionTest, WhereNothingRepeatsItCannotBeTold) {
  const Judged step({.iterations = 1});
  EXPECT_EQ(step.decision.verdict, GraphVerdict::unknown);
  EXPECT_THAT(step.decision.headline, StartsWith("No verdict: "));
}

TEST(DecisionTest, EachScopeHasTheCallToWriteInBothLanguages) {
  const Judged step({});
  EXPECT_THAT(step.scope(GraphScope::iteration).cpp, HasSubstr("pianola::FullIteration"));
  EXPECT_THAT(step.scope(GraphScope::iteration).python, HasSubstr("pianola.FullIteration"));
  EXPECT_THAT(step.scope(GraphScope::layers).python, HasSubstr("pianola.make_graphed_callables"));
}

}  // namespace
}  // namespace pianola::decision_test
