#include <pianola/config/check.hpp>

#include <pianola/config/file.hpp>
#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace pianola::check_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::vector<std::string> ids_of(const ConfigReport& report) {
  std::vector<std::string> ids;
  for (const ConfigFinding& finding : report.findings) ids.emplace_back(finding.rule->id);
  return ids;
}

// What a page about Megatron-Bridge's graphs says to set for a full iteration.
CudaGraphConfig full_iteration_of_bridge() {
  return {.target = ConfigTarget::bridge,
          .cuda_graph_impl = CudaGraphImpl::full_iteration,
          .use_te_rng_tracker = true,
          .te_rng_tracker = true,
          .check_for_nan_in_loss = false,
          .check_for_nan_in_grad = false};
}

CudaGraphConfig all_wrong() {
  CudaGraphConfig config{.target = ConfigTarget::megatron,
                         .cuda_graph_impl = CudaGraphImpl::full_iteration,
                         .cuda_graph_modules = {CudaGraphModule::attn},
                         .use_te_rng_tracker = true,
                         .check_for_nan_in_loss = true};
  config.hybrid_context_parallel = true;
  config.pipeline_model_parallel_size = 2;
  return config;
}

TEST(ConfigCheckTest, AValidConfigurationStaysAsItIs) {
  const ConfigReport report = check_config(full_iteration_of_bridge());
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.config, full_iteration_of_bridge());
}

TEST(ConfigCheckTest, EverythingIsFoundAtOnceFixesFirst) {
  const ConfigReport report = check_config(all_wrong());
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_THAT(ids_of(report), ElementsAre("CF201", "CF303", "CF102", "CF110", "CF302", "CF709"));
  EXPECT_EQ(report.count(ConfigOutcome::error), 3U);
  EXPECT_EQ(report.count(ConfigOutcome::fixed), 2U);
  EXPECT_EQ(report.count(ConfigOutcome::warning), 1U);
}

TEST(ConfigCheckTest, AFixSaysWhatItChangedFromWhatToWhat) {
  const ConfigReport report = check_config(all_wrong());
  ASSERT_EQ(report.findings[0].changes.size(), 1U);
  EXPECT_EQ(report.findings[0].changes[0].key, "rng.te_rng_tracker");
  EXPECT_EQ(report.findings[0].changes[0].from, "unset");
  EXPECT_EQ(report.findings[0].changes[0].to, "true");
  EXPECT_EQ(report.config.te_rng_tracker, true);
  EXPECT_EQ(report.config.check_for_nan_in_grad, false);
}

TEST(ConfigCheckTest, AFixIsSeenByTheRulesAfterIt) {
  // Without the modules, which are taken away first, nothing of experts is captured.
  const ConfigReport report = check_config({.cuda_graph_modules = {CudaGraphModule::moe}});
  EXPECT_THAT(ids_of(report), ElementsAre("CF101"));
  // Both modules are there, once the other one has been added.
  const ConfigReport local = check_config({.target = ConfigTarget::megatron,
                                           .cuda_graph_impl = CudaGraphImpl::local,
                                           .cuda_graph_modules = {CudaGraphModule::moe_preprocess},
                                           .use_te_rng_tracker = true,
                                           .te_rng_tracker = true,
                                           .num_moe_experts = 8});
  EXPECT_THAT(ids_of(local), ElementsAre("CF401"));
}

TEST(ConfigCheckTest, CheckingTheResultAgainFixesNothing) {
  const ConfigReport report = check_config(all_wrong());
  const ConfigReport again = check_config(report.config);
  EXPECT_EQ(again.count(ConfigOutcome::fixed), 0U);
  EXPECT_EQ(again.count(ConfigOutcome::error), report.count(ConfigOutcome::error));
  EXPECT_EQ(again.config, report.config);
}

TEST(ConfigCheckTest, NanChecksStayOnInPianolasOwnGraphs) {
  CudaGraphConfig config = full_iteration_of_bridge();
  config.check_for_nan_in_loss = config.check_for_nan_in_grad = true;
  EXPECT_THAT(ids_of(check_config(config)), ElementsAre("CF302", "CF304"));
  config.target = ConfigTarget::pianola;
  const ConfigReport report = check_config(config);
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.config.check_for_nan_in_loss, true);
}

TEST(ConfigCheckTest, WhatIsUnsetInTheFrameworksHasTheirDefaults) {
  CudaGraphConfig config = full_iteration_of_bridge();
  config.recompute_granularity = RecomputeGranularity::selective;
  EXPECT_THAT(ids_of(check_config(config)), ElementsAre("CF504"));  // attention_dropout is 0.1 there
  config.attention_dropout = 0.0;
  EXPECT_THAT(check_config(config).findings, IsEmpty());
}

TEST(ConfigCheckTest, VersionsThatNobodySaidAreNotJudged) {
  CudaGraphConfig config{
      .cuda_graph_impl = CudaGraphImpl::full_iteration, .use_te_rng_tracker = true, .te_rng_tracker = true};
  config.cross_entropy_loss_fusion = true;
  config.cross_entropy_fusion_impl = "te";
  EXPECT_THAT(check_config(config).findings, IsEmpty());
  config.te_version = "some";
  EXPECT_THAT(check_config(config).findings, IsEmpty());
  config.te_version = "2.6.0";
  EXPECT_THAT(ids_of(check_config(config)), ElementsAre("CF805"));
}

TEST(ConfigCheckTest, TheTextHasErrorsFixesAndWarningsAndTheResult) {
  const std::string text = check_config(all_wrong()).to_text();
  EXPECT_TRUE(
      text.starts_with("Configuration for megatron: not valid: 3 errors, 2 fixed, 1 warning\n\n  CF102 error: "))
      << text;
  EXPECT_THAT(text, HasSubstr("    to do: empty cuda_graph_modules, or choose per-layer graphs\n"
                              "    why:   one graph of the iteration holds every module\n"));
  EXPECT_THAT(text, HasSubstr("    fixed: rng.te_rng_tracker: unset -> true\n"));
  EXPECT_LT(text.find("CF709 error"), text.find("CF201 fixed"));
  EXPECT_LT(text.find("CF303 fixed"), text.find("CF110 warning"));
  EXPECT_THAT(text, AllOf(HasSubstr("Resulting configuration"), HasSubstr("model.cuda_graph_impl"),
                          HasSubstr("\"full_iteration\""), Not(HasSubstr("cuda_graph_warmup_steps"))));
}

TEST(ConfigCheckTest, TheTextOfAValidConfigurationIsItsResult) {
  EXPECT_EQ(check_config({}).to_text(),
            "Configuration for pianola: valid: 0 errors, 0 fixed, 0 warnings\n\n"
            "Resulting configuration\n"
            "key     value\n"
            "------  ---------\n"
            "target  \"pianola\"\n");
}

TEST(ConfigCheckTest, TheJsonHasTheFindingsWithTheirRules) {
  const auto json = nlohmann::json::parse(check_config(all_wrong()).to_json());
  EXPECT_EQ(json["target"], "megatron");
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["errors"], 3);
  EXPECT_EQ(json["fixed"], 2);
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_EQ(json["findings"].size(), 6U);
  EXPECT_EQ(json["findings"][0]["rule"], "CF201");
  EXPECT_EQ(json["findings"][0]["outcome"], "fixed");
  EXPECT_EQ(json["findings"][0]["changes"][0]["key"], "rng.te_rng_tracker");
  EXPECT_EQ(json["findings"][2]["advice"], config_rule("CF102").advice);
  EXPECT_EQ(json["findings"][2]["reason"], config_rule("CF102").reason);
  EXPECT_EQ(json["configuration"]["rng"]["te_rng_tracker"], true);
  EXPECT_EQ(json["configuration"]["model"]["cuda_graph_modules"], (std::vector<std::string>{"attn"}));
  EXPECT_EQ(json["configuration"]["dataset"]["offline_packing_specs"]["pad_cu_seqlens"], false);
}

TEST(ConfigCheckTest, NotesStandBeforeTheFindings) {
  ConfigReport report = check_config({.cuda_graph_warmup_steps = -1});
  report.notes = {"it was read"};
  EXPECT_THAT(report.to_text(), HasSubstr("0 warnings\n\n  it was read\n\n  CF104 error"));
  EXPECT_EQ(nlohmann::json::parse(report.to_json())["notes"], std::vector<std::string>{"it was read"});
}

TEST(ConfigCheckTest, TheConfigurationOfTheJsonCanBeReadAgain) {
  const ConfigReport report = check_config(all_wrong());
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(parse_config(json["configuration"].dump()).config, report.config);
}

TEST(ConfigCheckTest, WhatIsValidMayBeCaptured) {
  EXPECT_NO_THROW(require_valid(full_iteration_of_bridge()));
  EXPECT_NO_THROW(require_valid({.cuda_graph_impl = CudaGraphImpl::full_iteration}));  // it is fixed
}

TEST(ConfigCheckTest, OneErrorIsASentence) {
  EXPECT_THAT([] { require_valid({.cuda_graph_warmup_steps = -1}); },
              ThrowsMessage<ConfigError>(
                  "the configuration has 1 error: CF104: cuda_graph_warmup_steps must be 0 or more, got -1\n"
                  "  fix:   CF104: set it to 3"));
}

TEST(ConfigCheckTest, EveryErrorIsNamedBeforeACapture) {
  EXPECT_THAT([] { require_valid(all_wrong()); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("the configuration has 3 errors:\n  - CF102: "),
                                               HasSubstr("\n  - CF302: "), HasSubstr("\n  - CF709: "),
                                               HasSubstr("CF709: switch it off"), Not(HasSubstr("CF201")))));
}

}  // namespace
}  // namespace pianola::check_test
