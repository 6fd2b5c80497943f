#include <pianola/config/yaml.hpp>

#include <pianola/config/file.hpp>
#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pianola::yaml_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

bool is_built_in() {
  try {
    return json_of_yaml("a: 1", "a.yaml").is_object();
  } catch (const UnsupportedError&) {
    return false;
  }
}

class ConfigYamlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_built_in()) GTEST_SKIP() << "built without yaml-cpp";
  }
};

TEST(ConfigYamlSupportTest, ABuildWithoutYamlSaysWhatToInstall) {
  if (is_built_in()) GTEST_SKIP() << "built with yaml-cpp";
  EXPECT_THAT([] { (void)json_of_yaml("a: 1", "run.yaml"); },
              ThrowsMessage<UnsupportedError>(
                  AllOf(HasSubstr("'run.yaml' is YAML, which this build"), HasSubstr("libyaml-cpp-dev"))));
}

TEST_F(ConfigYamlTest, ScalarsAreWhatTheyAreWrittenAs) {
  EXPECT_EQ(json_of_yaml("a: 3\nb: 0.5\nc: true\nd: null\ne: text\nf: '3'\ng: \"true\"\nh: yes\ni: 1e-3\nj: +4\nk:\n"
                         "l: expandable_segments:True\nm: 2.10.0\nn: .5\no: !!str 7\n",
                         "a.yaml")
                .dump(),
            R"({"a":3,"b":0.5,"c":true,"d":null,"e":"text","f":"3","g":"true","h":"yes","i":0.001,"j":4,"k":null,)"
            R"("l":"expandable_segments:True","m":"2.10.0","n":0.5,"o":"7"})");
}

TEST_F(ConfigYamlTest, MapsListsAndAnchorsAreObjectsAndLists) {
  EXPECT_EQ(json_of_yaml("model: &m\n  modules: [attn, mlp]\n  freq:\n    - 0\n    - 1\nother: *m\n", "a.yaml").dump(),
            R"({"model":{"modules":["attn","mlp"],"freq":[0,1]},"other":{"modules":["attn","mlp"],"freq":[0,1]}})");
}

TEST_F(ConfigYamlTest, AConfigurationIsReadFromIt) {
  const LoadedConfig loaded = parse_config(
      "# full iteration\ntarget: bridge\nmodel:\n  cuda_graph_impl: local\n  cuda_graph_scope: [full_iteration]\n"
      "rng: {te_rng_tracker: true}\nenv:\n  te_version: '2.10.0'\n",
      ConfigFormat::yaml);
  EXPECT_EQ(loaded.config.cuda_graph_impl, CudaGraphImpl::full_iteration);
  EXPECT_EQ(loaded.config.target, ConfigTarget::bridge);
  EXPECT_EQ(loaded.config.te_version, "2.10.0");
  EXPECT_EQ(loaded.migrated.size(), 2U);
}

TEST_F(ConfigYamlTest, AVersionWithoutQuotesIsRefusedSinceItLostAZero) {
  EXPECT_THAT(
      [] { (void)parse_config("env: {te_version: 2.10}", ConfigFormat::yaml); },
      ThrowsMessage<ConfigError>(HasSubstr("env.te_version: expected a text, or null, got 2.1; write it in quotes")));
}

TEST_F(ConfigYamlTest, AnEmptyFileIsNoConfiguration) {
  EXPECT_THAT([] { (void)parse_config("", ConfigFormat::yaml, {}, "run.yaml"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.yaml' is no configuration")));
}

TEST_F(ConfigYamlTest, WhatIsNoYamlSaysWhere) {
  EXPECT_THAT([] { (void)json_of_yaml("model:\n  a: [1\n  b: 2\n", "run.yaml"); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("'run.yaml' is no YAML: "), HasSubstr("where: line 3"))));
}

TEST_F(ConfigYamlTest, AKeyThatStandsThereTwiceIsRefused) {
  EXPECT_THAT([] { (void)json_of_yaml("model:\n  a: 1\n  a: 2\n", "run.yaml"); },
              ThrowsMessage<ConfigError>("'run.yaml': duplicate key 'a'\n  where: line 3, column 3"));
}

TEST_F(ConfigYamlTest, AKeyThatIsNoTextIsRefused) {
  EXPECT_THAT([] { (void)json_of_yaml("[a, b]: 1\n", "run.yaml"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.yaml': a key is no text")));
}

// Ten lines that have a billion values.
TEST_F(ConfigYamlTest, ADocumentThatGrowsByItsAnchorsIsRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string now = std::to_string(i), before = "*a" + std::to_string(i - 1);
    text += "a" + now + ": &a" + now + " [" + before;
    for (int j = 0; j < 9; ++j) text += ", " + before;
    text += "]\n";
  }
  EXPECT_THAT([&] { (void)json_of_yaml(text, "run.yaml"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.yaml': it has more than 100000 values")));
}

TEST_F(ConfigYamlTest, BytesThatAreNoTextCanBeShownInARefusal) {
  EXPECT_THAT([] { (void)parse_config("cuda_graph_scope: [\"a\xff\xfe\", full]\n", ConfigFormat::yaml); },
              ThrowsMessage<ConfigError>(
                  HasSubstr("cuda_graph_modules = [\"a\xEF\xBF\xBD\xEF\xBF\xBD\",\"full\"]: full means")));
}

TEST_F(ConfigYamlTest, ADocumentThatHoldsItselfIsRefused) {
  EXPECT_THAT([] { (void)json_of_yaml("a: &a\n  b: *a\n", "run.yaml"); },
              ThrowsMessage<ConfigError>(HasSubstr("'run.yaml'")));
}

}  // namespace
}  // namespace pianola::yaml_test
