#include <pianola/parallel/branch_info.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace pianola::branch_info_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

BranchInfo rebuilt_info() {
  BranchInfo info;
  info.branches = 4;
  info.rebuilt = true;
  info.nodes = 397;
  info.units = 380;
  info.edges_before = 396;
  info.edges_after = 512;
  info.lanes = 3;
  info.proved_pairs = 8123;
  info.critical_nodes = 210;
  info.modelled_serial_us = 640;
  info.modelled_rebuilt_us = 420.5;
  info.modelled_critical_us = 400;
  info.without_reuse_us = 380;
  info.without_workspaces_us = 400;
  info.without_barriers_us = 312.5;
  info.serial_us = 300;
  info.rebuilt_us = 200;
  info.floor_us = 187.5;
  info.workspace_bytes = std::size_t{96} << 20U;
  info.held_bytes = std::size_t{5} << 20U;
  info.plan_time = std::chrono::microseconds(1500);
  info.rebuild_time = std::chrono::microseconds(900);
  info.trial_time = std::chrono::microseconds(7000);
  info.obstacles = {{.cause = "reuse of memory", .op = "aten::mm", .dependencies = 41},
                    {.cause = "workspace", .op = "aten::addmm", .dependencies = 12}};
  return info;
}

TEST(BranchReport, SaysFirstWhetherTheGraphWasRebuiltAndWhatThatGained) {
  EXPECT_EQ(rebuilt_info().report().to_text(),
            "Branches\n"
            "  rebuilt                      yes\n"
            "  why not                      -\n"
            "  replay as captured           300 us\n"
            "  replay rebuilt               200 us\n"
            "  speed-up                     1.50\n"
            "  longest path alone           188 us\n"
            "  not timed because            -\n"
            "  branches asked for           4\n"
            "  lanes used                   3\n"
            "  nodes                        397\n"
            "  units                        380\n"
            "  nodes on the longest path    210\n"
            "  edges as captured            396\n"
            "  edges rebuilt                512\n"
            "  pairs proved to be in order  8123\n"
            "  modelled as captured         640 us\n"
            "  modelled rebuilt             420 us\n"
            "  modelled longest path        400 us\n"
            "  workspaces                   96.0 MiB\n"
            "  kept from reuse              5.0 MiB\n"
            "  planning and proof           1500 us\n"
            "  rebuilding                   900 us\n"
            "  timing both                  7000 us\n"
            "\n"
            "  What held it back: dependencies without a value\n"
            "  cause            operator that waits  dependencies\n"
            "  ---------------  -------------------  ------------\n"
            "  reuse of memory  aten::mm                       41\n"
            "  workspace        aten::addmm                    12\n"
            "\n"
            "  The longest path without them, modelled\n"
            "  without           longest path (us)\n"
            "  ----------------  -----------------\n"
            "  nothing left out              400.0\n"
            "  reuse of memory               380.0\n"
            "  workspaces                    400.0\n"
            "  barriers                      312.5\n");
}

TEST(BranchReport, SaysWhyAGraphStaysAsCaptured) {
  BranchInfo info = rebuilt_info();
  info.rebuilt = false;
  info.reason = "the step is one chain";
  info.warnings = {"branches was 12, and 8 are used"};
  const std::string text = info.report().to_text();
  EXPECT_THAT(text, StartsWith("Branches\n"
                               "  rebuilt                      no\n"
                               "  why not                      the step is one chain\n"));
  EXPECT_THAT(text, HasSubstr("  Warnings\n  - branches was 12, and 8 are used\n"));
}

TEST(BranchReport, ShowsNoTimeThatWasNotMeasured) {
  BranchInfo info = rebuilt_info();
  info.serial_us = info.rebuilt_us = info.floor_us = 0;
  info.untimed = "self_check is off";
  EXPECT_THAT(info.report().to_text(), HasSubstr("  replay as captured           -\n"
                                                 "  replay rebuilt               -\n"
                                                 "  speed-up                     -\n"
                                                 "  longest path alone           -\n"
                                                 "  not timed because            self_check is off\n"));
  info.serial_us = 300;  // the rebuilt one was not run
  EXPECT_THAT(info.report().to_text(), HasSubstr("  replay as captured           300 us\n"
                                                 "  replay rebuilt               -\n"
                                                 "  speed-up                     -\n"));
}

TEST(BranchReport, HasStableKeysAndPlainNumbersInJson) {
  const auto json = nlohmann::ordered_json::parse(rebuilt_info().report().to_json());
  std::string keys;
  for (const auto& [key, value] : json.items()) keys += key + " ";
  EXPECT_EQ(keys,
            "rebuilt reason serial_us rebuilt_us speed_up floor_us untimed branches lanes nodes units critical_nodes "
            "edges_before edges_after proved_pairs modelled_serial_us modelled_rebuilt_us modelled_critical_us "
            "workspace_bytes held_bytes plan_us rebuild_us trial_us warnings obstacles longest_path ");
  EXPECT_EQ(json["rebuilt"], true);
  EXPECT_TRUE(json["reason"].is_null());
  EXPECT_EQ(json["speed_up"], 1.5);
  EXPECT_EQ(json["workspace_bytes"], 100663296);
  EXPECT_EQ(json["plan_us"], 1500);
  EXPECT_EQ(json["obstacles"].at(1),
            nlohmann::ordered_json::parse(R"({"cause": "workspace", "op": "aten::addmm", "dependencies": 12})"));
  EXPECT_EQ(json["longest_path"].at(3), nlohmann::ordered_json::parse(R"({"without": "barriers", "us": 312.5})"));
}

TEST(BranchReport, OfNothingFoundOutHasTheSameKeys) {
  BranchInfo info;
  info.branches = 4;
  info.reason = "the step was captured without a trace";
  const auto json = nlohmann::json::parse(info.report().to_json());
  EXPECT_EQ(json.size(), nlohmann::json::parse(rebuilt_info().report().to_json()).size());
  EXPECT_EQ(json["reason"], info.reason);
  EXPECT_TRUE(json["serial_us"].is_null());
  EXPECT_TRUE(json["obstacles"].empty());
  EXPECT_THAT(info.report().to_text(), Not(HasSubstr("Warnings")));
}

}  // namespace
}  // namespace pianola::branch_info_test
