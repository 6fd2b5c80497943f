#include <pianola/profile/profile.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>
#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <nlohmann/json.hpp>

#include <optional>
#include <set>
#include <stdexcept>
#include <string>

namespace pianola::profile_test {
namespace {

using profiling::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ProfileTest : public testing::DeviceTest {
 protected:
  // Products of small matrices, one after the other.
  void step() {
    ++runs_;
    at::Tensor x = weight_;
    for (int i = 0; i < 20; ++i) x = at::mm(x, weight_);
  }
  Profile profiled(const ProfileOptions& options = {}) {
    return profile([this] { step(); }, options);
  }

  at::Tensor weight_;
  int runs_ = 0;

  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) weight_ = randn({16, 16});
  }
};
PIANOLA_ON_EVERY_DEVICE(ProfileTest);

TEST_P(ProfileTest, AStepIsTimedAndThenRecordedAsOften) {
  const Profile profile = profiled({.warmup = 2, .iterations = 6});
  EXPECT_EQ(runs_, 2 + 6 + 6);
  EXPECT_EQ(profile.analysis.by, IterationsBy::range);
  EXPECT_GE(profile.analysis.kernels, 20);
  EXPECT_GT(profile.timeline.unrecorded, 0);
  EXPECT_EQ(profile.analysis.unrecorded, profile.timeline.unrecorded);
  EXPECT_EQ(profile.decision.verdict, on_cuda() ? GraphVerdict::graph : GraphVerdict::unknown);
}

TEST_P(ProfileTest, WhatWasRecordedIsKeptAndReadsTheSame) {
  const TemporaryFolder folder;
  for (const char* name : {"step.json", "step.json.gz"}) {
    const Profile profile = profiled({.iterations = 4, .trace = folder / name});
    const Profile again = load_profile(folder / name);
    EXPECT_EQ(again.analysis.range, kProfiledStep) << "each run is an iteration, as it was";
    EXPECT_EQ(again.analysis.duration, profile.analysis.duration) << name;
    EXPECT_EQ(again.analysis.kernels, profile.analysis.kernels) << name;
    EXPECT_EQ(again.timeline.unrecorded, profile.timeline.unrecorded) << name;
    EXPECT_EQ(again.decision.headline, profile.decision.headline) << name;
    ASSERT_TRUE(again.analysis.memory && profile.analysis.memory) << name;
    const auto& left = profile.analysis.memory->left;
    ASSERT_EQ(left.has_value(), on_cuda()) << name;
    ASSERT_EQ(again.analysis.memory->left.has_value(), on_cuda()) << name;
    if (!left) continue;
    EXPECT_FALSE(profile.analysis.memory->left_at_most) << "the driver was asked";
    EXPECT_GT(left->of_driver, 0U) << name;
    EXPECT_EQ(again.analysis.memory->left->of_driver, left->of_driver) << name;
    EXPECT_EQ(profile.decision.scopes.back().memory.fits, std::optional(true)) << name;
  }
  EXPECT_TRUE(nlohmann::json::accept(profiling::contents(folder / "step.json")));
  EXPECT_EQ(profiling::contents(folder / "step.json.gz").substr(0, 2), "\x1f\x8b") << "gzip's mark";
}

TEST_P(ProfileTest, ATraceThatCannotBeWrittenIsNamed) {
  const std::string message = testing::refusal<UsageError>("a trace in a folder that is not there", [&] {
    profiled({.iterations = 1, .trace = "/no/such/folder/step.json"});
  });
  EXPECT_THAT(message, HasSubstr("cannot write the trace '/no/such/folder/step.json'"));
}

TEST_P(ProfileTest, OptionsOutOfRangeAreNamedBeforeTheStepRuns) {
  EXPECT_THAT(testing::refusal<UsageError>("no iterations", [&] { profiled({.iterations = 0}); }),
              HasSubstr("iterations must be 1 or more, got 0"));
  EXPECT_THAT(testing::refusal<UsageError>("less than no warm-up", [&] { profiled({.warmup = -1}); }),
              HasSubstr("warmup must be 0 or more, got -1"));
  EXPECT_EQ(runs_, 0);
}

TEST_P(ProfileTest, AnActiveProfilerIsNamedAndGoesOn) {
  namespace kineto = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU};
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
  const std::string message = testing::refusal<UsageError>("an active profiler", [&] { profiled(); });
  EXPECT_THAT(message, AllOf(HasSubstr("one is active already"), HasSubstr("end the profiler that is active")));
  EXPECT_EQ(runs_, 0);
  step();
  const auto result = kineto::disableProfiler();
  EXPECT_GE(result->events().size(), 20U) << "its recording was not ended";
}

TEST_P(ProfileTest, WhatTheStepThrowsArrivesAndNoProfilerIsLeftActive) {
  for (const int runs_until_it_fails : {0, 2, 5}) {  // in the warm-up, while it is timed, while it is recorded
    runs_ = 0;
    const auto failing = [&] {
      if (runs_ == runs_until_it_fails) throw std::runtime_error("out of data");
      step();
    };
    EXPECT_THAT([&] { (void)profile(failing, {.warmup = 1, .iterations = 3}); },
                ::testing::ThrowsMessage<std::runtime_error>("out of data"));
  }
  EXPECT_GE(profiled({.iterations = 2}).analysis.kernels, 20);
}

}  // namespace
}  // namespace pianola::profile_test
