#include <pianola/core/hazard_rule.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace pianola::hazard_rule_test {
namespace {

using ::testing::HasSubstr;

TEST(HazardRuleTest, IdsAndKindsAreUniqueAndInOrder) {
  std::set<std::string_view> ids, kinds;
  int last = 0;
  for (const HazardRule& rule : hazard_rules()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    EXPECT_TRUE(kinds.insert(rule.kind).second) << rule.kind;
    const int number = std::atoi(std::string(rule.id.substr(2)).c_str());
    EXPECT_TRUE(rule.id.starts_with("PG")) << rule.id;
    EXPECT_GT(number, last) << rule.id;
    last = number;
  }
  EXPECT_GE(ids.size(), 60U);
}

TEST(HazardRuleTest, EveryRuleSaysWhatWhyAndWhatToDo) {
  for (const HazardRule& rule : hazard_rules()) {
    EXPECT_FALSE(rule.title.empty()) << rule.id;
    EXPECT_FALSE(rule.why.empty()) << rule.id;
    EXPECT_FALSE(rule.fix.empty()) << rule.id;
    EXPECT_FALSE(rule.title.ends_with('.')) << rule.id;
  }
}

TEST(HazardRuleTest, IsFoundByIdAndByKind) {
  EXPECT_EQ(hazard_rule("PG101").kind, "host-value");
  EXPECT_EQ(hazard_rule("moved-tensor").id, "PG401");
}

TEST(HazardRuleTest, RefusesAnUnknownName) {
  try {
    (void)hazard_rule("PG1");
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no hazard rule 'PG1'"));
  }
}

TEST(HazardRuleTest, AnErrorShowsItsRule) {
  const CaptureError error({.what = "it broke", .where = "here", .rule = "PG101"});
  EXPECT_STREQ(error.what(), "it broke [PG101]\n  where: here");
}

}  // namespace
}  // namespace pianola::hazard_rule_test
