#include <pianola/profile/profile_report.hpp>

#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace pianola {
namespace {

using profiling::testing::training_timeline;
using profiling::testing::TrainingShape;
using ::testing::HasSubstr;
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

TEST(ProfileReportTest, WhatCannotBeToldHasNoNumber) {
  const auto json = nlohmann::json::parse(report_of({.ranges = false}).to_json());
  EXPECT_TRUE(json["scopes"][0]["expected_us"].is_null());
  EXPECT_THAT(json["scopes"][0]["obstacle"].get<std::string>(), HasSubstr("names no layers"));
}

TEST(ProfileReportTest, AGraphedProgramGetsNoAdviceToGraphIt) {
  const std::string text = report_of({.graphed = true}).to_text();
  EXPECT_THAT(text, HasSubstr("Graphs do the work already"));
  EXPECT_THAT(text, Not(HasSubstr("The call to write")));
  EXPECT_THAT(text, Not(HasSubstr("What an iteration would take")));
}

}  // namespace
}  // namespace pianola
