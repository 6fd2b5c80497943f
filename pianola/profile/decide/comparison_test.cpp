#include <pianola/profile/decide/comparison.hpp>

#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace pianola::comparison_test {
namespace {

using profiling::testing::training_timeline;
using ::testing::HasSubstr;

Nanoseconds us(double time) { return static_cast<Nanoseconds>(time * 1000); }

// 125 kernels, one every 10 us, and a pause of 50 us; then the same as nodes that lie 1 us apart.
struct BeforeAndAfter {
  Timeline slow = training_timeline({});
  Analysis before = analyse(slow);
  Decision decision = decide(slow, before);
  Analysis after = analyse(training_timeline({.graphed = true}));
};

TEST(ComparisonTest, OneLaunchReplacesMany) {
  const BeforeAndAfter program;
  ASSERT_EQ(program.after.duration, us(125 * 5));
  const ProfileComparison compared = compare_profiles(program.before, program.decision, program.after);
  EXPECT_DOUBLE_EQ(compared.speedup, 1300.0 / 625);
  EXPECT_DOUBLE_EQ(compared.launches_replaced, 124);
}

// The graph of the whole iteration is the scope that launches once; 625 us came of 531.25.
TEST(ComparisonTest, ThePredictionOfTheScopeThatWasTakenIsHeldAgainstTheMeasurement) {
  const BeforeAndAfter program;
  const ProfileComparison compared = compare_profiles(program.before, program.decision, program.after);
  EXPECT_EQ(compared.scope, GraphScope::iteration);
  EXPECT_EQ(compared.predicted, us(531.25));
  EXPECT_NEAR(compared.prediction_error, 625 / 531.25 - 1, 1e-9);
}

TEST(ComparisonTest, TimesAreThoseOfUnrecordedIterationsWhereTheyAreKnown) {
  Timeline slow = training_timeline({}), graphed = training_timeline({.graphed = true});
  slow.unrecorded = us(1000);
  graphed.unrecorded = us(500);
  const Analysis before = analyse(slow), after = analyse(graphed);
  const ProfileComparison compared = compare_profiles(before, decide(slow, before), after);
  EXPECT_DOUBLE_EQ(compared.speedup, 2);
  EXPECT_NEAR(compared.prediction_error, 500 / 531.25 - 1, 1e-9);
  EXPECT_THAT(comparison_report(before, decide(slow, before), after).to_text(),
              HasSubstr("2.00 times as fast: 500 us instead of 1.00 ms per iteration"));
}

TEST(ComparisonTest, TheReportShowsBothSides) {
  const BeforeAndAfter program;
  const Report report = comparison_report(program.before, program.decision, program.after);
  EXPECT_THAT(report.to_text(),
              HasSubstr("2.08 times as fast: 625 us instead of 1.30 ms per iteration, 1 launching call "
                        "instead of 125."));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["scope"], "whole iteration");
  EXPECT_EQ(json["predicted_us"], 531.25);
  EXPECT_EQ(json["measures"][4]["measure"], "launching calls");
  EXPECT_EQ(json["measures"][4]["before"], 125);
  EXPECT_EQ(json["measures"][4]["after"], 1);
}

// 73 MiB of its own in an iteration before, beside 100 of parameters; with a graph, nothing is allocated any more.
TEST(ComparisonTest, MemoryIsShownWhereBothProfilesTellOfIt) {
  Timeline slow = training_timeline({.memory = true});
  const Analysis before = analyse(slow);
  Timeline graphed = training_timeline({.graphed = true});
  graphed.memory.push_back({.allocated = 150U << 20U, .reserved = 256U << 20U});
  const Report report = comparison_report(before, decide(slow, before), analyse(graphed));
  const auto rows = nlohmann::json::parse(report.to_json())["measures"];
  ASSERT_EQ(rows.size(), 12U);
  EXPECT_EQ(rows[9],
            (nlohmann::json{
                {"measure", "memory of its own at most, MiB"}, {"before", 73.0}, {"after", 0.0}, {"ratio", 0.0}}));
  EXPECT_EQ(rows[10]["measure"], "allocated at most, MiB");
  EXPECT_EQ(rows[10]["before"], 173);
  EXPECT_EQ(rows[10]["after"], 150);
  EXPECT_EQ(rows[11]["measure"], "reserved at most, MiB");
  EXPECT_EQ(rows[11]["ratio"], 0.5);
}

TEST(ComparisonTest, MemoryIsNotShownWhereOneProfileDoesNotTellOfIt) {
  Timeline slow = training_timeline({.memory = true});
  const Analysis before = analyse(slow);
  const Report report = comparison_report(before, decide(slow, before), analyse(training_timeline({.graphed = true})));
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["measures"].size(), 9U);
}

TEST(ComparisonTest, SlowerThanBeforeIsSaid) {
  const BeforeAndAfter program;
  const Report report = comparison_report(program.after, decide(program.slow, program.before), program.before);
  EXPECT_THAT(report.to_text(), HasSubstr("0.48 times as fast, so slower than before"));
}

}  // namespace
}  // namespace pianola::comparison_test
