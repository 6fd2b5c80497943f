#include <pianola/config/field.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace pianola::field_test {
namespace {

using ::testing::ThrowsMessage;

using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

void expect_refusal(const char* key, const ConfigValue& value, const std::string& message) {
  CudaGraphConfig config;
  EXPECT_THAT([&] { config_field(key).set(config, value); }, ThrowsMessage<ConfigError>(message));
  EXPECT_EQ(config, CudaGraphConfig()) << key;
}

CudaGraphConfig with(const char* key, const ConfigValue& value) {
  CudaGraphConfig config;
  config_field(key).set(config, value);
  return config;
}

TEST(ConfigFieldTest, EveryFieldHasANameOfItsOwnAMeaningAndTheValueThatWasSet) {
  std::set<std::string_view> names;
  const CudaGraphConfig defaults;
  for (const ConfigField& field : config_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_FALSE(field.meaning.ends_with('.')) << field.name;
    EXPECT_FALSE(field.accepts().empty()) << field.name;
    CudaGraphConfig copy;
    field.set(copy, field.get(defaults));
    EXPECT_EQ(copy, defaults) << field.name;
  }
}

// A member that the table lacks would be read by nobody: it would be a gap between its neighbours.
TEST(ConfigFieldTest, EveryMemberOfTheConfigurationIsAField) {
  CudaGraphConfig config;
  std::size_t at = 0;
  for (const ConfigField& field : config_fields()) {
    std::visit(
        [&](auto pointer) {
          auto& member = config.*pointer;
          const auto begin =
              static_cast<std::size_t>(reinterpret_cast<char*>(&member) - reinterpret_cast<char*>(&config));
          EXPECT_GE(begin, at) << field.name << " is not in the order of the struct";
          EXPECT_LT(begin - at, alignof(decltype(member))) << "a member before " << field.name << " is no field";
          at = begin + sizeof(member);
        },
        field.member);
  }
  EXPECT_LT(sizeof(config) - at, alignof(CudaGraphConfig));
}

TEST(ConfigFieldTest, IsFoundByPathAndByName) {
  EXPECT_EQ(config_field("model.cuda_graph_impl").name, "cuda_graph_impl");
  EXPECT_EQ(config_field("cuda_graph_impl").path(), "model.cuda_graph_impl");
  EXPECT_EQ(config_field("target").path(), "target");
  EXPECT_EQ(config_field("dataset.offline_packing_specs.pad_cu_seqlens").name, "pad_cu_seqlens");
  EXPECT_EQ(find_config_field("ddp.cuda_graph_impl"), nullptr);
  EXPECT_EQ(find_config_field(""), nullptr);
}

TEST(ConfigFieldTest, AnUnknownNameIsRefusedWithTheNearestOne) {
  EXPECT_THAT([] { (void)config_field("cuda_graph_imp"); },
              ThrowsMessage<ConfigError>("there is no key 'cuda_graph_imp'; did you mean 'cuda_graph_impl'?"));
  EXPECT_THAT([] { (void)config_field("colour"); }, ThrowsMessage<ConfigError>("there is no key 'colour'"));
}

TEST(ConfigFieldTest, ReadsEachType) {
  EXPECT_TRUE(with("cpu_offloading", true).cpu_offloading);
  EXPECT_EQ(with("cuda_graph_warmup_steps", 11).cuda_graph_warmup_steps, 11);
  EXPECT_EQ(with("attention_dropout", 0.25).attention_dropout, 0.25);
  EXPECT_EQ(with("attention_dropout", std::int64_t{0}).attention_dropout, 0.0);
  EXPECT_EQ(with("te_version", std::string("2.10.0")).te_version, "2.10.0");
  EXPECT_EQ(with("moe_layer_freq", Integers{0, 1}).moe_layer_freq, (std::vector<int>{0, 1}));
  EXPECT_EQ(with("moe_layer_freq", std::int64_t{2}).moe_layer_freq, (std::vector<int>{2}));
  EXPECT_EQ(with("recompute_modules", Texts{"mlp"}).recompute_modules, Texts{"mlp"});
  EXPECT_EQ(with("recompute_modules", std::string("mlp, moe")).recompute_modules, (Texts{"mlp", "moe"}));
  EXPECT_EQ(with("recompute_granularity", std::string("full")).recompute_granularity, RecomputeGranularity::full);
  EXPECT_EQ(with("cuda_graph_modules", Texts{"attn", "mamba"}).cuda_graph_modules,
            (std::vector{CudaGraphModule::attn, CudaGraphModule::mamba}));
  EXPECT_EQ(with("cuda_graph_modules", std::string("attn")).cuda_graph_modules, (std::vector{CudaGraphModule::attn}));
}

TEST(ConfigFieldTest, NothingUnsetsWhatCanBeUnsetAndEmptiesLists) {
  CudaGraphConfig config{.cuda_graph_modules = {CudaGraphModule::attn}, .check_for_nan_in_loss = true};
  config_field("check_for_nan_in_loss").set(config, {});
  config_field("cuda_graph_modules").set(config, {});
  EXPECT_EQ(config, CudaGraphConfig());
  EXPECT_EQ(written_out(config_field("check_for_nan_in_loss").get(config)), "unset");
}

TEST(ConfigFieldTest, NamesOfPianolaAreOtherNamesOfTheSameImplementations) {
  EXPECT_EQ(with("cuda_graph_impl", std::string("per_layer")).cuda_graph_impl, CudaGraphImpl::local);
  EXPECT_EQ(with("cuda_graph_impl", std::string("callables")).cuda_graph_impl, CudaGraphImpl::transformer_engine);
  EXPECT_EQ(with("cuda_graph_impl", std::string("iteration")).cuda_graph_impl, CudaGraphImpl::full_iteration);
  EXPECT_EQ(written_out(config_field("cuda_graph_impl").get({.cuda_graph_impl = CudaGraphImpl::callables})),
            "\"transformer_engine\"");
}

TEST(ConfigFieldTest, RefusesAnotherType) {
  expect_refusal("cpu_offloading", std::string("yes"), "model.cpu_offloading: expected true or false, got \"yes\"");
  expect_refusal("cpu_offloading", std::int64_t{1}, "model.cpu_offloading: expected true or false, got 1");
  expect_refusal("cpu_offloading", {}, "model.cpu_offloading: expected true or false, got null");
  expect_refusal("cuda_graph_warmup_steps", 2.5, "model.cuda_graph_warmup_steps: expected an integer, got 2.5");
  expect_refusal("cuda_graph_warmup_steps", true, "model.cuda_graph_warmup_steps: expected an integer, got true");
  expect_refusal("cuda_graph_warmup_steps", std::int64_t{1} << 40,
                 "model.cuda_graph_warmup_steps: expected an integer, got 1099511627776; that is too large");
  expect_refusal("attention_dropout", std::string("0.1"),
                 "model.attention_dropout: expected a number, or null, got \"0.1\"");
  expect_refusal("te_version", 2.1, "env.te_version: expected a text, or null, got 2.1; write it in quotes");
  expect_refusal("moe_layer_freq", Texts{"a"}, "model.moe_layer_freq: expected a list of integers, got [\"a\"]");
  expect_refusal("recompute_modules", Integers{1}, "model.recompute_modules: expected a list of texts, got [1]");
  expect_refusal("recompute_modules", true, "model.recompute_modules: expected a list of texts, got true");
}

TEST(ConfigFieldTest, RefusesANameThatIsNone) {
  expect_refusal("target", std::string("bridges"),
                 "target: expected one of pianola, megatron, bridge, got \"bridges\"; did you mean 'bridge'?");
  expect_refusal("cuda_graph_modules", Texts{"attn", "mpl"},
                 "model.cuda_graph_modules: expected a list of attn, mlp, moe, moe_router, moe_preprocess, mamba, got "
                 "[\"attn\", \"mpl\"]; did you mean 'mlp'?");
  expect_refusal("recompute_granularity", std::string("some"),
                 "model.recompute_granularity: expected one of full, selective, or null, got \"some\"");
}

}  // namespace
}  // namespace pianola::field_test
