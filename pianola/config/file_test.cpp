#include <pianola/config/file.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace pianola::file_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

CudaGraphConfig read(const std::string& text) { return parse_config(text).config; }

// The sentences of the refusal, without its head and its advice.
void expect_problems(const std::string& text, const std::vector<std::string>& problems,
                     const ConfigFileOptions& options = {}) {
  std::string what =
      "'run' has " + std::to_string(problems.size()) + (problems.size() == 1 ? " problem: " : " problems:");
  for (const std::string& problem : problems) what += (problems.size() == 1 ? "" : "\n  - ") + problem;
  try {
    (void)parse_config(text, ConfigFormat::json, options, "run");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.diagnosis().what, what);
  }
}

class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, const std::string& text)
      : path_(std::filesystem::path(::testing::TempDir()) / ("pianola_" + name)) {
    std::ofstream(path_) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ConfigFileTest, ReadsSections) {
  const CudaGraphConfig config = read(R"({
    "target": "bridge",
    "model": {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router"],
              "cuda_graph_warmup_steps": 11, "attention_dropout": 0, "num_moe_experts": null, "moe_layer_freq": 2},
    "rng": {"te_rng_tracker": true},
    "rerun_state_machine": {"check_for_nan_in_loss": false},
    "dataset": {"offline_packing_specs": {"pad_cu_seqlens": true}, "pad_to_max_length": true},
    "env": {"NCCL_GRAPH_REGISTER": 0, "te_version": "2.10.0"}
  })");
  EXPECT_EQ(config.target, ConfigTarget::bridge);
  EXPECT_EQ(config.cuda_graph_impl, CudaGraphImpl::transformer_engine);
  EXPECT_THAT(config.cuda_graph_modules, ElementsAre(CudaGraphModule::attn, CudaGraphModule::moe_router));
  EXPECT_EQ(config.cuda_graph_warmup_steps, 11);
  EXPECT_EQ(config.attention_dropout, 0.0);
  EXPECT_FALSE(config.num_moe_experts);
  EXPECT_THAT(config.moe_layer_freq, ElementsAre(2));
  EXPECT_EQ(config.te_rng_tracker, true);
  EXPECT_EQ(config.check_for_nan_in_loss, false);
  EXPECT_TRUE(config.pad_cu_seqlens && config.pad_to_max_length);
  EXPECT_EQ(config.nccl_graph_register, 0);
  EXPECT_EQ(config.te_version, "2.10.0");
}

TEST(ConfigFileTest, ReadsNamesAloneAndDottedKeysAsTheSame) {
  const CudaGraphConfig nested = read(R"({"model": {"cuda_graph_impl": "local"}, "rng": {"te_rng_tracker": true}})");
  EXPECT_EQ(read(R"({"cuda_graph_impl": "local", "te_rng_tracker": true})"), nested);
  EXPECT_EQ(read(R"({"model.cuda_graph_impl": "local", "rng.te_rng_tracker": true})"), nested);
  EXPECT_EQ(read(R"({"rng.te_rng_tracker": true, "model": {"cuda_graph_impl": "local"}, "rng": null})"), nested);
}

TEST(ConfigFileTest, AnEmptyFileIsTheDefaultConfiguration) {
  EXPECT_EQ(read("{}"), CudaGraphConfig());
  EXPECT_EQ(read(R"({"model": {}, "ddp": null})"), CudaGraphConfig());
}

TEST(ConfigFileTest, ReadsWhatFrameworksWriteElsewhere) {
  EXPECT_TRUE(read(R"({"comm_overlap": {"delay_wgrad_compute": true}})").delay_wgrad_compute);
  EXPECT_TRUE(read(R"({"dataset": {"dataset_kwargs": {"pad_to_max_length": true}}})").pad_to_max_length);
  const CudaGraphConfig both = read(R"({"check_for_nan_in_loss_and_grad": false})");
  EXPECT_EQ(both.check_for_nan_in_loss, false);
  EXPECT_EQ(both.check_for_nan_in_grad, false);
}

TEST(ConfigFileTest, TheSameSaidTwiceIsNoContradiction) {
  EXPECT_TRUE(read(R"({"dist": {"use_megatron_fsdp": true}, "ddp": {"use_megatron_fsdp": true}})").use_megatron_fsdp);
}

TEST(ConfigFileTest, AnUnknownKeyIsRefusedWithTheNearestOne) {
  expect_problems(R"({"model": {"cuda_graph_imp": "local"}})",
                  {"model.cuda_graph_imp: there is no such key; did you mean 'model.cuda_graph_impl'?"});
  expect_problems(R"({"te_rng_traker": true})",
                  {"te_rng_traker: there is no such key; did you mean 'te_rng_tracker'?"});
  expect_problems(R"({"ddp": {"te_rng_tracker": true}})",
                  {"ddp.te_rng_tracker: there is no such key; did you mean 'rng.te_rng_tracker'?"});
  expect_problems(R"({"modle": {"cuda_graph_modules": []}})",
                  {"modle.cuda_graph_modules: there is no such key; did you mean 'model.cuda_graph_modules'?"});
  expect_problems(R"({"model": {"hidden_size": 64}})", {"model.hidden_size: there is no such key"});
}

TEST(ConfigFileTest, OtherKeysMayBeSkippedButNotMisspellings) {
  const std::string text =
      R"({"model": {"hidden_size": 64, "cuda_graph_impl": "local"}, "logger": {"log_interval": 1}})";
  const LoadedConfig loaded = parse_config(text, ConfigFormat::json, {.allow_other_keys = true});
  EXPECT_EQ(loaded.config.cuda_graph_impl, CudaGraphImpl::local);
  EXPECT_THAT(loaded.other_keys, ElementsAre("model.hidden_size", "logger.log_interval"));
  expect_problems(R"({"model": {"hidden_size": 64, "cuda_graph_imp": "local"}})",
                  {"model.cuda_graph_imp: there is no such key; did you mean 'model.cuda_graph_impl'?"},
                  {.allow_other_keys = true});
}

TEST(ConfigFileTest, AKeyThatWasTakenAwaySaysWhy) {
  const LoadedConfig loaded = parse_config(R"({"model": {"cuda_graph_share_io_buffers": true}})");
  EXPECT_THAT(loaded.migrated, ElementsAre("model.cuda_graph_share_io_buffers = true was left out: buffers are shared "
                                           "wherever their lifetimes allow it"));
  EXPECT_EQ(loaded.config, CudaGraphConfig());
}

TEST(ConfigFileTest, AWrongTypeIsRefused) {
  expect_problems(R"({"model": {"cuda_graph_warmup_steps": "three"}})",
                  {"model.cuda_graph_warmup_steps: expected an integer, got \"three\""});
  expect_problems(R"({"model": {"cuda_graph_impl": "locla"}})",
                  {"model.cuda_graph_impl: expected one of none, local, transformer_engine, full_iteration, per_layer, "
                   "callables, iteration, got \"locla\"; did you mean 'local'?"});
  expect_problems(R"({"model": {"cuda_graph_impl": null}})",
                  {"model.cuda_graph_impl: expected one of none, local, transformer_engine, full_iteration, per_layer, "
                   "callables, iteration, got null"});
  expect_problems(R"({"model": {"recompute_modules": ["mlp", 1]}})",
                  {"model.recompute_modules: [\"mlp\",1] is no value, nor a list of texts or of integers"});
  expect_problems(R"({"model": {"cpu_offloading": {"layers": 4}}})",
                  {"model.cpu_offloading: {\"layers\":4} is no value, nor a list of texts or of integers"});
  expect_problems(R"({"model": "gpt"})", {"model: expected a section, got \"gpt\""});
}

TEST(ConfigFileTest, EverythingIsNamedAtOnce) {
  expect_problems(
      R"({"model": {"cuda_graph_imp": "local", "cuda_graph_warmup_steps": 1.5}, "rng": {"te_rng_tracker": "on"}})",
      {"model.cuda_graph_imp: there is no such key; did you mean 'model.cuda_graph_impl'?",
       "model.cuda_graph_warmup_steps: expected an integer, got 1.5",
       "rng.te_rng_tracker: expected true or false, or null, got \"on\""});
}

TEST(ConfigFileTest, OneSettingWithTwoValuesIsRefused) {
  expect_problems(
      R"({"cuda_graph_impl": "local", "model": {"cuda_graph_impl": "none"}})",
      {"cuda_graph_impl = \"local\" and model.cuda_graph_impl = \"none\" contradict each other: they are the "
       "same setting"});
  expect_problems(
      R"({"model": {"delay_wgrad_compute": false}, "comm_overlap": {"delay_wgrad_compute": true}})",
      {"model.delay_wgrad_compute = false and comm_overlap.delay_wgrad_compute = true contradict each other: "
       "they are the same setting"});
  expect_problems(R"({"check_for_nan_in_loss_and_grad": false, "ddp": {"check_for_nan_in_grad": true}})",
                  {"check_for_nan_in_loss_and_grad = false and ddp.check_for_nan_in_grad = true contradict each other: "
                   "they are the same setting"});
}

TEST(ConfigFileTest, AKeyThatStandsThereTwiceIsRefused) {
  expect_problems(R"({"model": {"cuda_graph_impl": "local", "cuda_graph_impl": "none"}})",
                  {"duplicate key 'cuda_graph_impl'"});
  expect_problems(R"({"model.cuda_graph_impl": "local", "model": {"cuda_graph_impl": "local"}})",
                  {"duplicate key 'model.cuda_graph_impl'"});
  expect_problems(R"({"model.cuda_graph_impl": "local", "model": 3})", {"duplicate key 'model.cuda_graph_impl'"});
}

TEST(ConfigFileTest, WhatIsNoJsonSaysWhere) {
  EXPECT_THAT([] { (void)parse_config("{\n  \"model\": [}", ConfigFormat::json, {}, "run.json"); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("'run.json' is no JSON: parse error at line 2, column 13"), HasSubstr("'}'"))));
  EXPECT_THAT([] { (void)parse_config("", ConfigFormat::json, {}, "run.json"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.json' is no JSON: parse error at line 1")));
  EXPECT_THAT([] { (void)parse_config("[1]", ConfigFormat::json, {}, "run.json"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.json' is no configuration: expected keys with values")));
}

TEST(ConfigFileTest, RefusalsSayWhereToLook) {
  EXPECT_THAT([] { (void)parse_config(R"({"x": 1})"); },
              ThrowsMessage<ConfigError>("'the configuration' has 1 problem: x: there is no such key\n"
                                         "  fix:   'pianola config keys' lists the keys and what they accept"));
}

TEST(ConfigFileTest, LoadsAFile) {
  const TemporaryFile file("run.json", R"({"enable_cuda_graph": true})");
  const LoadedConfig loaded = load_config(file.path());
  EXPECT_EQ(loaded.config.cuda_graph_impl, CudaGraphImpl::local);
  EXPECT_THAT(loaded.migrated, ElementsAre("enable_cuda_graph = true is now cuda_graph_impl = local"));
  EXPECT_THAT(loaded.other_keys, IsEmpty());
}

TEST(ConfigFileTest, AFileThatIsNotThereIsRefused) {
  EXPECT_THAT(
      [] { (void)load_config("/no/such.json"); },
      ThrowsMessage<UsageError>(HasSubstr("cannot read the configuration '/no/such.json': No such file or directory")));
  EXPECT_THAT([] { (void)load_config(::testing::TempDir()); },
              ThrowsMessage<UsageError>(HasSubstr("cannot read the configuration '")));
}

TEST(ConfigFileTest, AMigratedFileKeepsEverythingElse) {
  const TemporaryFile file("old.json", R"({"logger": {"log_interval": 1},
    "model": {"hidden_size": 64, "cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"], "num_layers": 2}})");
  const MigratedConfig migrated = migrate_config(file.path());
  EXPECT_EQ(migrated.text,
            "{\n"
            "  \"logger\": {\n"
            "    \"log_interval\": 1\n"
            "  },\n"
            "  \"model\": {\n"
            "    \"hidden_size\": 64,\n"
            "    \"cuda_graph_impl\": \"full_iteration\",\n"
            "    \"num_layers\": 2\n"
            "  }\n"
            "}");
  EXPECT_EQ(migrated.migrated.size(), 2U);
}

TEST(ConfigFileTest, AFileUnderTheNamesOfTodayIsNotChanged) {
  const TemporaryFile file("new.json", R"({"model": {"cuda_graph_impl": "local"}})");
  EXPECT_THAT(migrate_config(file.path()).migrated, IsEmpty());
}

std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
  std::string text = "{\"model\": ";
  for (std::size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text + "}";
}

// What is nested so deep that going through it would take all of the stack.
TEST(ConfigFileTest, NestingWithoutEndIsRefused) {
  const std::string lists = nested(200'000, "[", "]"), objects = nested(200'000, "{\"a\":", "}");
  for (const std::string& text : {lists, objects}) {
    EXPECT_THAT([&] { (void)parse_config(text, ConfigFormat::json, {}, "deep.json"); },
                ThrowsMessage<ConfigError>(HasSubstr("'deep.json' is nested more than 64 deep")));
  }
  std::string dotted = "{\"a";
  for (int i = 0; i < 200'000; ++i) dotted += ".a";
  EXPECT_THAT([&] { (void)parse_config(dotted + "\": 1}"); },
              ThrowsMessage<ConfigError>(HasSubstr("is nested more than 64 deep")));
}

TEST(ConfigFileTest, WhatIsNoFileOfKeysIsNamedWithTheReason) {
  EXPECT_THAT([] { (void)load_config("/tmp"); }, ThrowsMessage<UsageError>(HasSubstr("'/tmp': Is a directory")));
  EXPECT_THAT([] { (void)load_config("/dev/null"); }, ThrowsMessage<UsageError>(HasSubstr("'/dev/null': it is empty")));
  EXPECT_THAT([] { (void)load_config("/dev/zero"); }, ThrowsMessage<UsageError>(HasSubstr("it has more than 16 MiB")));
}

}  // namespace
}  // namespace pianola::file_test
