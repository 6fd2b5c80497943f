#include <pianola/audit/report.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace pianola::report_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

Finding finding(std::string_view rule, int line, std::string op = "aten::item") {
  Finding made = Finding::of(rule);
  made.op = std::move(op);
  made.place = {.function = "train", .file = "/home/me/my step.py", .line = line};
  made.iteration = 1;
  return made;
}

TEST(AuditReport, IsEmptyAndOkAtFirst) {
  AuditReport report;
  report.subject = "step";
  report.device = "cpu";
  report.iterations = 3;
  report.operations = 12;
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_FALSE(report.worst());
  EXPECT_EQ(report.to_text(), "audit of step: no hazards\n3 iterations of 12 operations on cpu\n");
}

TEST(AuditReport, FindingsOfARuleKnowItsSeverityAndCure) {
  const Finding found = Finding::of("PG101");
  EXPECT_EQ(found.rule->kind, "host-value");
  EXPECT_EQ(found.severity, Severity::breaks_capture);
  EXPECT_THAT(found.fix, HasSubstr("torch::where"));
  EXPECT_EQ(Finding::of("host-value").rule, found.rule);
  EXPECT_THROW((void)Finding::of("PG000"), UsageError);
}

TEST(AuditReport, FindingsOfOneRuleAtOnePlaceBecomeOne) {
  AuditReport report;
  report.add(finding("PG101", 3));
  report.add(finding("PG101", 3));
  report.add(finding("PG101", 4));
  report.add(finding("PG102", 3));
  report.add(finding("PG101", 3, "aten::equal"));
  ASSERT_EQ(report.findings().size(), 4U);
  EXPECT_EQ(report.findings()[0].times, 2U);
  EXPECT_EQ(report.findings()[1].times, 1U);
}

TEST(AuditReport, WithoutAPlaceWhatTheySayDecides) {
  AuditReport report;
  Finding one = Finding::of("PG401");
  one.what = "'a' was replaced";
  Finding other = Finding::of("PG401");
  other.what = "'b' was replaced";
  report.add(one);
  report.add(other);
  report.add(one);
  ASSERT_EQ(report.findings().size(), 2U);
  EXPECT_EQ(report.findings()[0].times, 2U);
}

TEST(AuditReport, AMergedFindingSaysBothAndKeepsTheFirstIterationAndTheWorstSeverity) {
  AuditReport report;
  Finding late = finding("PG906", 3);
  late.iteration = 3;
  late.severity = Severity::style;
  late.what = "one thing";
  Finding early = finding("PG906", 3);
  early.iteration = 2;
  early.what = "another thing";
  report.add(late);
  report.add(early);
  ASSERT_EQ(report.findings().size(), 1U);
  EXPECT_EQ(report.findings()[0].iteration, 2);
  EXPECT_EQ(report.findings()[0].severity, Severity::wrong_numbers);
  EXPECT_THAT(report.findings()[0].evidence, HasSubstr("also: another thing"));
}

TEST(AuditReport, WorstComeFirstAndElseTheOrderOfAdding) {
  AuditReport report;
  report.add(finding("PG304", 1));
  report.add(finding("PG301", 2));
  report.add(finding("PG901", 3));
  report.add(finding("PG101", 4));
  report.add(finding("PG303", 5));
  std::string order;
  for (const Finding& found : report.findings()) order += std::string(found.rule->id) + " ";
  EXPECT_EQ(order, "PG101 PG301 PG303 PG901 PG304 ");
  EXPECT_EQ(report.worst(), Severity::breaks_capture);
}

TEST(AuditReport, MemoryPerformanceAndStyleDoNotMakeItFail) {
  AuditReport report;
  report.add(finding("PG901", 1));
  report.add(finding("PG804", 2));
  EXPECT_TRUE(report.ok());
  report.add(finding("PG301", 3));
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.exit_code(), 3);
}

TEST(AuditReport, TextHasAHeadingAndOneEntryForEach) {
  AuditReport report;
  report.subject = "train_step";
  report.device = "cuda:0";
  report.iterations = 3;
  report.operations = 40;
  Finding read = finding("PG101", 88);
  read.module = "encoder.3";
  read.what = "aten::item returns a value of a tensor to the host";
  read.evidence = "of a Float [] tensor";
  report.add(read);
  report.add(read);
  report.add(finding("PG301", 90));
  report.add_note("other threads were not watched");
  report.add_note("other threads were not watched");
  const std::string text = report.to_text();
  EXPECT_THAT(text, AllOf(HasSubstr("audit of train_step: 2 hazards: 1 breaks capture, 1 wrong numbers\n"),
                          HasSubstr("  1. breaks capture [PG101 host-value]\n"),
                          HasSubstr("at   /home/me/my step.py:88 in train, module encoder.3\n"),
                          HasSubstr("seen of a Float [] tensor; 2 times in all\n"), HasSubstr("fix  keep the value"),
                          HasSubstr("note: other threads were not watched\n")));
  EXPECT_THAT(text, HasSubstr("  2. wrong numbers [PG301 frozen-number]\n"));
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_EQ(text.back(), '\n');
}

TEST(AuditReport, TextSaysWhatGraphsTheStepWouldBeAndWhatCutsThem) {
  AuditReport report;
  report.operations = 40;
  const SourcePlace loss{.function = "train", .file = "train.py", .line = 12};
  report.cuts = {{.op = "aten::item", .place = loss, .before = 10}, {.op = "aten::nonzero", .before = 24}};
  EXPECT_THAT(
      report.to_text(),
      HasSubstr("\n3 graphs as it is, of 10, 24 and 4 operations, cut by aten::item at train.py:12; aten::nonzero\n"));
  EXPECT_EQ(Json::parse(report.to_json())["cuts"][0]["operations_before"], 10);
  report.cuts = {{.op = "aten::item", .place = loss, .before = 39}};
  EXPECT_THAT(report.to_text(), Not(HasSubstr("graphs as it is"))) << "nothing is behind it";
  report.cuts.clear();
  EXPECT_THAT(report.to_text(), Not(HasSubstr("graphs as it is")));
}

TEST(AuditReport, TextNamesAFewOfManyCuts) {
  AuditReport report;
  report.operations = 200;
  for (int i = 0; i < 20; ++i) {
    report.cuts.push_back({.op = "aten::item", .place = {.file = "a.py", .line = i % 10}, .before = 9});
  }
  EXPECT_THAT(report.to_text(), AllOf(HasSubstr("20 graphs as it is, of 9, 9, 9, 9, 9, 9, 9, 9 ... operations"),
                                      HasSubstr("and at 6 other places")));
}

TEST(AuditReport, JsonHasEveryFieldOfAFinding) {
  AuditReport report;
  report.subject = "train \"step\"";
  Finding read = finding("PG101", 88);
  read.module = "encoder.3";
  read.evidence = "seen \xff bytes";  // not UTF-8
  report.add(read);
  Finding nowhere = Finding::of("PG505");
  report.add(nowhere);
  const Json json = Json::parse(report.to_json());
  EXPECT_EQ(json["subject"], "train \"step\"");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["worst"], "breaks capture");
  ASSERT_EQ(json["findings"].size(), 2U);
  const Json& first = json["findings"][0];
  EXPECT_EQ(first["rule"], "PG101");
  EXPECT_EQ(first["kind"], "host-value");
  EXPECT_EQ(first["severity"], "breaks capture");
  EXPECT_EQ(first["op"], "aten::item");
  EXPECT_EQ(first["module"], "encoder.3");
  EXPECT_EQ(first["place"], Json({{"function", "train"}, {"file", "/home/me/my step.py"}, {"line", 88}}));
  EXPECT_EQ(first["iteration"], 1);
  EXPECT_EQ(first["times"], 1);
  for (const char* key : {"what", "why", "evidence", "fix"}) EXPECT_FALSE(first[key].get<std::string>().empty()) << key;
  EXPECT_TRUE(json["findings"][1]["place"].is_null());
  EXPECT_EQ(Json::parse(AuditReport().to_json(-1))["worst"], nullptr);
  EXPECT_THAT(AuditReport().to_json(-1), Not(HasSubstr("\n")));
}

TEST(AuditReport, SarifNamesRulesOnceAndPointsAtLines) {
  AuditReport report;
  report.add(finding("PG101", 88));
  report.add(finding("PG101", 90));
  report.add(finding("PG901", 91));
  report.add(finding("PG804", 92));
  report.add(Finding::of("PG505"));
  const Json sarif = Json::parse(report.to_sarif());
  EXPECT_EQ(sarif["version"], "2.1.0");
  ASSERT_EQ(sarif["runs"].size(), 1U);
  const Json& run = sarif["runs"][0];
  const Json& rules = run["tool"]["driver"]["rules"];
  EXPECT_EQ(run["tool"]["driver"]["name"], "pianola");
  ASSERT_EQ(rules.size(), 4U);
  EXPECT_EQ(rules[0]["id"], "PG101");
  EXPECT_EQ(rules[0]["name"], "host-value");
  EXPECT_TRUE(rules[0]["shortDescription"]["text"].is_string());
  EXPECT_TRUE(rules[0]["help"]["text"].is_string());
  const Json& results = run["results"];
  ASSERT_EQ(results.size(), 5U);
  for (const Json& result : results) {
    EXPECT_EQ(rules[result["ruleIndex"].get<std::size_t>()]["id"], result["ruleId"]);
    EXPECT_TRUE(result["message"]["text"].is_string());
    EXPECT_GE(result["occurrenceCount"].get<int>(), 1);
  }
  EXPECT_EQ(results[0]["level"], "error");
  EXPECT_EQ(results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"], "file:///home/me/my%20step.py");
  EXPECT_EQ(results[0]["locations"][0]["physicalLocation"]["region"]["startLine"], 88);
  const auto by_rule = [&](const char* rule) {
    for (const Json& result : results) {
      if (result["ruleId"] == rule) return result;
    }
    return Json();
  };
  EXPECT_EQ(by_rule("PG505")["level"], "error");
  EXPECT_EQ(by_rule("PG901")["level"], "warning");
  EXPECT_EQ(by_rule("PG804")["level"], "note");
  EXPECT_FALSE(by_rule("PG505").contains("locations"));
}

}  // namespace
}  // namespace pianola::report_test
