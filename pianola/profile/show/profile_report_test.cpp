#include <pianola/profile/show/profile_report.hpp>

#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace pianola::profile_report_test {
namespace {

using profiling::testing::training_timeline;
using profiling::testing::TrainingShape;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Report report_of(const TrainingShape& shape) {
  const Timeline timeline = training_timeline(shape);
  const Analysis analysis = analyse(timeline);
  return profile_report(timeline, analysis, decide(timeline, analysis));
}

TEST(ProfileReportTest, TheVerdictStandsFirstAndTheCallToWriteLast) {
  const std::string text = report_of({}).to_text();
  EXPECT_LT(text.find("Graph it"), text.find("device busy"));
  EXPECT_LT(text.find("device busy"), text.find("Idle time of the device"));
  EXPECT_LT(text.find("Idle time of the device"), text.find("The call to write"));
}

TEST(ProfileReportTest, NumbersAreInJson) {
  const auto json = nlohmann::json::parse(report_of({.reads_loss = true}).to_json());
  EXPECT_EQ(json["verdict"], "graph");
  EXPECT_EQ(json["kernels"], 125);
  EXPECT_EQ(json["busy_us"], 500);
  EXPECT_EQ(json["synchronizations"], 1);
  EXPECT_EQ(json["scopes"].size(), kGraphScopes);
  EXPECT_EQ(json["scopes"][3]["scope"], "whole iteration");
  EXPECT_EQ(json["scopes"][3]["expected_us"], 582.25);
  EXPECT_EQ(json["waits"][0]["call"], "cudaStreamSynchronize");
}

TEST(ProfileReportTest, TheTimeOfAnUnrecordedIterationIsThereWhereItIsKnown) {
  Timeline timeline = training_timeline({});
  timeline.unrecorded = 1'000'000;
  const Analysis analysis = analyse(timeline);
  const Report report = profile_report(timeline, analysis, decide(timeline, analysis));
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["unrecorded_us"], 1000);
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["iteration_us"], 1300);
  EXPECT_THAT(report.to_text(), HasSubstr("while not recorded"));
  EXPECT_FALSE(nlohmann::json::parse(report_of({}).to_json()).contains("unrecorded_us"));
}

TEST(ProfileReportTest, WhatCannotBeToldHasNoNumber) {
  const auto json = nlohmann::json::parse(report_of({.ranges = false}).to_json());
  EXPECT_TRUE(json["scopes"][0]["expected_us"].is_null());
  EXPECT_THAT(json["scopes"][0]["obstacle"].get<std::string>(), HasSubstr("names no layers"));
}

TEST(ProfileReportTest, MemoryIsThereInTextAndJson) {
  const Report report = report_of({.memory = true, .device = 2048});
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["own_bytes"], 73U << 20U);
  EXPECT_EQ(json["allocated_bytes"], 173U << 20U);
  EXPECT_EQ(json["reserved_bytes"], 512U << 20U);
  EXPECT_EQ(json["memory"][3]["scope"], "whole iteration");
  EXPECT_EQ(json["memory"][3]["pool_bytes"], 110U << 20U);
  EXPECT_EQ(json["memory"][3]["input_bytes"], 0);
  EXPECT_EQ(json["memory"][3]["executable_bytes"], 125 * 1600);
  EXPECT_EQ(json["memory"][3]["fits"], "yes");
  EXPECT_EQ(json["free_bytes"], (2048U - 512U) << 20U);
  EXPECT_EQ(json["cached_bytes"], (512U - 148U) << 20U);
  ASSERT_EQ(json["memory_verdicts"].size(), kGraphScopes);
  EXPECT_THAT(json["memory_verdicts"][3].get<std::string>(),
              HasSubstr("whole iteration: It fits: a capture takes 110.2 MiB of the driver"));
  EXPECT_THAT(json["notes"], IsEmpty());
  EXPECT_THAT(report.to_text(), HasSubstr("left to the driver, at most"));
  EXPECT_THAT(report.to_text(), AllOf(ContainsRegex("memory of its own +73.0 MiB"),
                                      HasSubstr("Device memory that graphs would take"), HasSubstr("110.0 MiB")));
}

TEST(ProfileReportTest, WhatDoesNotFitIsAmongTheObstaclesAndTheTableSaysSo) {
  Timeline timeline = training_timeline({.memory = true});
  timeline.devices = {{.left = memory::FreeMemory{.of_driver = 100U << 20U}}};
  const Analysis analysis = analyse(timeline);
  const auto json = nlohmann::json::parse(profile_report(timeline, analysis, decide(timeline, analysis)).to_json());
  EXPECT_EQ(json["memory"][1]["fits"], "yes");
  EXPECT_EQ(json["memory"][3]["fits"], "no");
  EXPECT_EQ(json["memory_verdicts"].size(), 2U) << "of those that fit";
  EXPECT_EQ(json["obstacles"].size(), 2U) << "of the others";
  EXPECT_THAT(json["obstacles"][1].get<std::string>(), HasSubstr("whole iteration: It does not fit"));
  EXPECT_EQ(json["free_bytes"], 100U << 20U);
}

TEST(ProfileReportTest, MemoryThatIsUnknownHasNoNumberAndANoteOnHowToRecordIt) {
  const Report report = report_of({});
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_TRUE(json["own_bytes"].is_null());
  EXPECT_TRUE(json["memory"][3]["pool_bytes"].is_null());
  EXPECT_EQ(json["memory"][3]["executable_bytes"], 125 * 1600) << "is known by the nodes";
  ASSERT_EQ(json["notes"].size(), 1U);
  EXPECT_THAT(json["notes"][0].get<std::string>(), HasSubstr("torch.profiler.profile(profile_memory=True)"));
}

TEST(ProfileReportTest, OfAScopeThatCannotBeToldThereIsNoMemory) {
  const auto json = nlohmann::json::parse(report_of({.ranges = false, .memory = true}).to_json());
  EXPECT_TRUE(json["memory"][0]["pool_bytes"].is_null());
  EXPECT_TRUE(json["memory"][0]["executable_bytes"].is_null());
}

#if PIANOLA_WITH_ZLIB

TEST(ProfileReportTest, ATraceOfTorchWithoutTheAllocatorSaysThatMemoryIsUnknown) {
  const Timeline timeline = read_chrome_trace(std::filesystem::path(PIANOLA_TEST_DATA) / "profile" / "mlp_cpu.json.gz");
  const Analysis analysis = analyse(timeline);
  const auto json = nlohmann::json::parse(profile_report(timeline, analysis, decide(timeline, analysis)).to_json());
  EXPECT_TRUE(json["own_bytes"].is_null());
  ASSERT_EQ(json["notes"].size(), 1U);
  EXPECT_THAT(json["notes"][0].get<std::string>(), HasSubstr("the profile has no events of torch's allocator"));
}

#endif

TEST(ProfileReportTest, AGraphedProgramGetsNoAdviceToGraphIt) {
  const std::string text = report_of({.graphed = true}).to_text();
  EXPECT_THAT(text, HasSubstr("Graphs do the work already"));
  EXPECT_THAT(text, Not(HasSubstr("The call to write")));
  EXPECT_THAT(text, Not(HasSubstr("What an iteration would take")));
}

}  // namespace
}  // namespace pianola::profile_report_test
