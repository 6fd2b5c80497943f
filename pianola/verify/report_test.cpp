#include <pianola/verify/report.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>

namespace pianola::report_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

VerifyReport a_difference() {
  VerifyReport report{.verdict = Verdict::differs, .subject = "training step", .steps = 2, .tensors = 14};
  report.differences = {{.name = "model.0.weight",
                         .role = "state",
                         .step = 2,
                         .shape = "Float [16, 64]",
                         .elements = 1024,
                         .differing = 3,
                         .max_absolute = 0.375,
                         .max_relative = 3,
                         .max_ulps = 1 << 24,
                         .first = "[3, 7]: eager 0.125, graph 0.5"},
                        {.name = "grad of model.0.weight",
                         .role = "gradient",
                         .step = 2,
                         .shape = "Float [16, 64]",
                         .elements = 1024,
                         .differing = 1024,
                         .note = "undefined in graph"}};
  report.origin = {.op = "aten::sub_.Tensor",
                   .number = 41,
                   .module = "optimizer",
                   .place = {.function = "train_step", .file = "/home/me/loss.cpp", .line = 88},
                   .what = "its argument 'alpha' is 0.05, and was 0.1 in step 1"};
  report.missing_state = {
      {.shape = "Float [4]", .op = "aten::add_.Tensor", .place = {.function = "f", .file = "a.py", .line = 7}}};
  report.notes = {"a word"};
  report.eager_time = std::chrono::microseconds(1500);
  return report;
}

TEST(VerifyReport, ReadsAsText) {
  const std::string text = a_difference().to_text();
  EXPECT_THAT(text,
              StartsWith("training step, eager against graphed\n  verdict    differs in step 2: 2 of 14 tensors\n"));
  for (const char* words :
       {"starts at  operation 41 (aten::sub_.Tensor), in 'optimizer', train_step at loss.cpp:88",
        "its argument 'alpha' is 0.05, and was 0.1 in step 1", "eager      1500 us",
        "Differences, nearest to the cause first", "model.0.weight", "3 of 1024", "0.375", "16777216",
        "[3, 7]: eager 0.125, graph 0.5", "undefined in graph", "Written and not listed in the state",
        "- Float [4], written by aten::add_.Tensor, f at a.py:7", "- a word"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
}

TEST(VerifyReport, ReadsAsJson) {
  const auto json = nlohmann::json::parse(a_difference().to_json());
  EXPECT_EQ(json["verdict"], "differs");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["subject"], "training step");
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["tensors"], 14);
  EXPECT_EQ(json["differences"].size(), 2U);
  EXPECT_EQ(json["differences"][0]["name"], "model.0.weight");
  EXPECT_EQ(json["differences"][0]["max_ulps"], 1 << 24);
  EXPECT_EQ(json["differences"][1]["note"], "undefined in graph");
  EXPECT_EQ(json["origin"]["line"], 88);
  EXPECT_EQ(json["origin"]["number"], 41);
  EXPECT_EQ(json["missing_state"][0]["file"], "a.py");
  EXPECT_EQ(json["notes"][0], "a word");
  EXPECT_EQ(json["eager_us"], 1500);
  EXPECT_EQ(a_difference().to_json(-1).find('\n'), std::string::npos);
}

TEST(VerifyReport, OfEveryVerdictHasItsWordsAndItsExitCode) {
  VerifyReport report{.subject = "step", .steps = 5, .tensors = 1};
  EXPECT_THAT(report.to_text(), HasSubstr("equal, bit for bit: 1 tensor at each of 5 steps"));
  EXPECT_EQ(report.exit_code(), 0);
  report.within_tolerance = true;
  EXPECT_THAT(report.to_text(), HasSubstr("equal within the tolerance: 1 tensor at each of 5 steps"));
  report.verdict = Verdict::nondeterministic;
  EXPECT_THAT(report.to_text(), HasSubstr("nondeterministic: eager does not repeat itself"));
  EXPECT_EQ(report.exit_code(), 3);
  report.verdict = Verdict::failed;
  report.error = "eager threw in step 2: no";
  EXPECT_THAT(report.to_text(), HasSubstr("failed: eager threw in step 2: no"));
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_FALSE(report.ok());
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_TRUE(json["origin"].is_null());
  EXPECT_TRUE(json["differences"].empty());
  EXPECT_EQ(json["error"], report.error);
}

TEST(VerifyReport, OfManyDifferencesShowsTheFirstAsText) {
  VerifyReport report = a_difference();
  report.differences.assign(30, report.differences[0]);
  for (int i = 0; i < 30; ++i) report.differences[static_cast<std::size_t>(i)].name = "tensor " + std::to_string(i);
  report.differences[0].max_ulps = std::numeric_limits<std::int64_t>::max();
  const std::string text = report.to_text();
  EXPECT_THAT(text, HasSubstr("tensor 19 "));
  EXPECT_THAT(text, Not(HasSubstr("tensor 20 ")));
  EXPECT_THAT(text, HasSubstr("the first 20 of 30 differences are shown"));
  EXPECT_THAT(text, HasSubstr(" NaN ")) << "no distance";
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["differences"].size(), 30U);
}

}  // namespace
}  // namespace pianola::report_test
