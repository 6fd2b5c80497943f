// Profiles of real programs, which tests/data/profile/README.md tells of. The numbers were counted in the files by other means.
#include <pianola/profile/decide/comparison.hpp>
#include <pianola/profile/profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace pianola::recorded_profiles_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Nanoseconds us(double time) { return static_cast<Nanoseconds>(time * 1000); }

Profile recorded(const char* name) { return load_profile(std::filesystem::path(PIANOLA_TEST_DATA) / "profile" / name); }

// An MLP of 17 layers, forward and backward, its loss, and AdamW: 154 kernels and 16 memsets an iteration.
TEST(RecordedProfiles, OfEagerTrainingOnAGpuIsTakenApart) {
  const Profile profile = recorded("mlp_gpu");
  EXPECT_EQ(profile.timeline.device_name, "NVIDIA H200");
  EXPECT_THAT(profile.timeline.work, SizeIs(5366));
  EXPECT_THAT(profile.timeline.calls, SizeIs(5402));
  EXPECT_THAT(profile.timeline.notes, IsEmpty());
  EXPECT_EQ(profile.analysis.by, IterationsBy::repetition);
  EXPECT_THAT(profile.analysis.iterations, SizeIs(29))
      << "of 31, of which the first is warm-up and the last is cut off";
  for (const Iteration& iteration : profile.analysis.iterations) {
    EXPECT_EQ(iteration.kernels, 154U);
    EXPECT_EQ(iteration.last_work - iteration.first_work, 170U);
    EXPECT_EQ(iteration.launches, 170U);
  }
  EXPECT_NEAR(static_cast<double>(profile.analysis.busy), static_cast<double>(us(392.9)), 100);
  EXPECT_EQ(profile.analysis.durations.median, 1536);
  EXPECT_EQ(profile.analysis.durations.longest, 8192);
  EXPECT_EQ(profile.analysis.durations.share_small, 1);
}

TEST(RecordedProfiles, OfEagerTrainingOnAGpuSaysToGraphIt) {
  const Profile profile = recorded("mlp_gpu");
  EXPECT_EQ(profile.decision.verdict, GraphVerdict::graph);
  EXPECT_THAT(profile.decision.obstacles, IsEmpty());
  const ScopePrediction& whole = profile.decision.scopes.back();
  EXPECT_EQ(whole.expected, profile.analysis.busy + 170 * 250);
  EXPECT_EQ(whole.low, profile.analysis.busy);
  EXPECT_EQ(whole.high, profile.analysis.busy + 170 * 600);
  EXPECT_EQ(whole.host_launches, 1);
  EXPECT_EQ(profile.decision.scopes[2].host_launches, 1 + 2) << "AdamW issues two kernels";
}

#if PIANOLA_WITH_ZLIB
// By torch.profiler, an MLP of 16 layers with Adam: 147 kernels and 16 memsets in each of ten steps.
TEST(RecordedProfiles, OfTorchsProfilerOnAGpuAreTakenApart) {
  const Profile profile = recorded("mlp_gpu_torch.json.gz");
  EXPECT_EQ(profile.timeline.device_name, "NVIDIA H200");
  EXPECT_THAT(profile.timeline.work, SizeIs(10 * 163));
  EXPECT_THAT(profile.timeline.notes, IsEmpty());
  EXPECT_THAT(profile.analysis.iterations, SizeIs(9));
  for (const Iteration& iteration : profile.analysis.iterations) {
    EXPECT_EQ(iteration.kernels, 147U);
    EXPECT_EQ(iteration.launches, 163U);
    EXPECT_EQ(iteration.graph_launches, 0U);
  }
  EXPECT_NEAR(static_cast<double>(profile.analysis.busy), static_cast<double>(us(372.67)), 500);
  EXPECT_EQ(profile.analysis.durations.median, 1440);
  EXPECT_EQ(profile.analysis.durations.longest, 7840);
  EXPECT_EQ(profile.decision.verdict, GraphVerdict::graph);
}

// The same in a graph of Pianola's. The trace has no call that launches it.
TEST(RecordedProfiles, OfTorchsProfilerShowGraphsOfPianolasThoughNotTheirLaunches) {
  const Profile before = recorded("mlp_gpu_torch.json.gz"), after = recorded("mlp_gpu_torch_graph.json.gz");
  EXPECT_THAT(after.timeline.notes, Contains(HasSubstr("10 launches of graphs were not recorded")));
  EXPECT_EQ(after.decision.verdict, GraphVerdict::graphed);
  EXPECT_EQ(after.decision.headline, "Graphs do the work already: 100 % of the kernels, in 1 launch per iteration.");
  EXPECT_EQ(after.analysis.kernels, 149);
  EXPECT_EQ(compare_profiles(before.analysis, before.decision, after.analysis).launches_replaced, 163 - 1);
}
#endif

// The same training in a graph: one launch, and one of the copy of the loss.
TEST(RecordedProfiles, OfGraphedTrainingSaysThatItIsAndHowMuchItGained) {
  const Profile before = recorded("mlp_gpu");
  const Profile after = recorded("mlp_gpu_graph");
  EXPECT_EQ(after.decision.verdict, GraphVerdict::graphed);
  EXPECT_EQ(after.analysis.kernels, 154);
  EXPECT_EQ(after.analysis.graph_launches, 1);
  EXPECT_EQ(after.analysis.launches, 2);
  const ProfileComparison compared = compare_profiles(before.analysis, before.decision, after.analysis);
  EXPECT_EQ(compared.launches_replaced, 168);
  EXPECT_EQ(compared.scope, GraphScope::iteration);
  EXPECT_NEAR(compared.prediction_error, 0.14, 0.005) << "of a program that is recorded";
  EXPECT_NEAR(compared.speedup, 7.13, 0.01);
}

TEST(RecordedProfiles, MakePages) {
  const Profile profile = recorded("mlp_gpu");
  const std::string page = profile.to_html();
  EXPECT_THAT(page, HasSubstr("Graph it"));
  EXPECT_THAT(page, HasSubstr("NVIDIA H200"));
}

}  // namespace
}  // namespace pianola::recorded_profiles_test
