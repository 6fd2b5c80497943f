#include <pianola/config/migration.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::migration_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Case {
  const char* name;
  const char* old_text;
  const char* new_text;  // as it is where a problem is expected
  std::vector<std::string> notes = {};
  std::string problem = {};
};

class ConfigMigrationTest : public ::testing::TestWithParam<Case> {};

TEST_P(ConfigMigrationTest, WritesOldNamesAsThoseOfToday) {
  ConfigJson document = ConfigJson::parse(GetParam().old_text);
  std::vector<std::string> problems;
  EXPECT_EQ(migrate_names(document, problems), GetParam().notes);
  EXPECT_EQ(document.dump(), ConfigJson::parse(GetParam().new_text).dump());
  if (GetParam().problem.empty()) {
    EXPECT_THAT(problems, IsEmpty());
  } else {
    EXPECT_THAT(problems, ElementsAre(GetParam().problem));
  }
}

TEST_P(ConfigMigrationTest, ChangesNothingMoreTheSecondTime) {
  ConfigJson document = ConfigJson::parse(GetParam().new_text);
  if (!GetParam().problem.empty()) return;
  std::vector<std::string> problems;
  EXPECT_THAT(migrate_names(document, problems), IsEmpty());
  EXPECT_EQ(document.dump(), ConfigJson::parse(GetParam().new_text).dump());
}

const Case kMigrations[] = {
    {"Nothing", R"({"model": {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]}})",
     R"({"model": {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]}})"},
    {"EnableCudaGraph",
     R"({"model": {"a": 1, "enable_cuda_graph": true, "b": 2}})",
     R"({"model": {"a": 1, "cuda_graph_impl": "local", "b": 2}})",
     {"model.enable_cuda_graph = true is now cuda_graph_impl = local"}},
    {"EnableCudaGraphOff",
     R"({"enable_cuda_graph": false})",
     R"({})",
     {"enable_cuda_graph = false was left out: cuda_graph_impl says it"}},
    {"ExternalCudaGraph",
     R"({"external_cuda_graph": true})",
     R"({"cuda_graph_impl": "transformer_engine"})",
     {"external_cuda_graph = true is now cuda_graph_impl = transformer_engine"}},
    {"OldNameWithTheSameNewOne",
     R"({"model": {"enable_cuda_graph": true, "cuda_graph_impl": "per_layer"}})",
     R"({"model": {"cuda_graph_impl": "local"}})",
     {"model.enable_cuda_graph = true is now cuda_graph_impl = local"}},
    {"OldNameWithNoneInTheSection",
     R"({"enable_cuda_graph": true, "model": {"cuda_graph_impl": "none"}})",
     R"({"model": {"cuda_graph_impl": "local"}})",
     {"enable_cuda_graph = true is now cuda_graph_impl = local"}},
    {"Scope",
     R"({"model": {"cuda_graph_scope": ["attn"], "cuda_graph_impl": "local"}})",
     R"({"model": {"cuda_graph_modules": ["attn"], "cuda_graph_impl": "local"}})",
     {R"(model.cuda_graph_scope = ["attn"] is now cuda_graph_modules = ["attn"])"}},
    {"ScopeOfNothing", R"({"cuda_graph_scope": null})", R"({})", {"cuda_graph_scope = null was left out"}},
    {"ScopeBesideModulesThatSayNothing",
     R"({"cuda_graph_scope": "attn", "cuda_graph_modules": []})",
     R"({"cuda_graph_modules": "attn"})",
     {R"(cuda_graph_scope = "attn" is now cuda_graph_modules = "attn")"}},
    {"WarmupSteps",
     R"({"enable_cuda_graph": true, "cuda_graph_num_warmup_steps": 5})",
     R"({"cuda_graph_impl": "local", "cuda_graph_warmup_steps": 5})",
     {"enable_cuda_graph = true is now cuda_graph_impl = local",
      "cuda_graph_num_warmup_steps = 5 is now cuda_graph_warmup_steps = 5"}},
    {"WarmupStepsOfBothNames",
     R"({"cuda_graph_num_warmup_steps": 5, "cuda_graph_warmup_steps": 3})",
     R"({"cuda_graph_num_warmup_steps": 5, "cuda_graph_warmup_steps": 3})",
     {},
     "cuda_graph_num_warmup_steps = 5 and cuda_graph_warmup_steps = 3 contradict each other: the first is the old name "
     "of "
     "the second"},
    {"SharedBuffers",
     R"({"model": {"cuda_graph_share_io_buffers": true, "cuda_graph_impl": "local"}})",
     R"({"model": {"cuda_graph_impl": "local"}})",
     {"model.cuda_graph_share_io_buffers = true was left out: buffers are shared wherever their lifetimes allow it"}},
    {"Full",
     R"({"cuda_graph_modules": "full"})",
     R"({"cuda_graph_modules": []})",
     {R"(cuda_graph_modules = "full" is now cuda_graph_modules = [])"}},
    {"FullIteration",
     R"({"model": {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}})",
     R"({"model": {"cuda_graph_impl": "full_iteration"}})",
     {R"(model.cuda_graph_scope = ["full_iteration"] is now cuda_graph_modules = ["full_iteration"])",
      R"(model.cuda_graph_modules = ["full_iteration"] is now cuda_graph_impl = full_iteration)"}},
    {"FullIterationAlone",
     R"({"a": 1, "cuda_graph_modules": "full_iteration", "b": 2})",
     R"({"a": 1, "cuda_graph_impl": "full_iteration", "b": 2})",
     {R"(cuda_graph_modules = "full_iteration" is now cuda_graph_impl = full_iteration)"}},
    {"FullIterationOfAnOldFlag",
     R"({"enable_cuda_graph": true, "cuda_graph_scope": "full_iteration"})",
     R"({"cuda_graph_impl": "full_iteration"})",
     {"enable_cuda_graph = true is now cuda_graph_impl = local",
      R"(cuda_graph_scope = "full_iteration" is now cuda_graph_modules = "full_iteration")",
      R"(cuda_graph_modules = "full_iteration" is now cuda_graph_impl = full_iteration)"}},
    {"InferenceOfBlocks",
     R"({"cuda_graph_impl": "local", "cuda_graph_modules": ["full_iteration_inference"]})",
     R"({"cuda_graph_impl": "local", "inference_cuda_graph_scope": "block"})",
     {R"(cuda_graph_modules = ["full_iteration_inference"] is now inference_cuda_graph_scope = block)"}},
    {"InferenceOfBlocksWithModules",
     R"({"cuda_graph_impl": "local", "cuda_graph_modules": "attn,full_iteration_inference"})",
     R"({"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"], "inference_cuda_graph_scope": "block"})",
     {R"(cuda_graph_modules = "attn,full_iteration_inference" is now inference_cuda_graph_scope = block)"}},
    {"InferenceOfBlocksWithoutGraphs",
     R"({"cuda_graph_modules": ["full_iteration_inference"]})",
     R"({"cuda_graph_modules": []})",
     {R"(cuda_graph_modules = ["full_iteration_inference"]: full_iteration_inference was left out: it has no effect )"
      "without cuda_graph_impl = local"}},
    {"BothFlags",
     R"({"model": {"enable_cuda_graph": true, "external_cuda_graph": true}})",
     R"({"model": {"enable_cuda_graph": true, "external_cuda_graph": true}})",
     {},
     "model.enable_cuda_graph and model.external_cuda_graph contradict each other: the first is cuda_graph_impl = "
     "local, "
     "the second transformer_engine"},
    {"FlagAndImplementation",
     R"({"model": {"enable_cuda_graph": true, "cuda_graph_impl": "full_iteration"}})",
     R"({"model": {"enable_cuda_graph": true, "cuda_graph_impl": "full_iteration"}})",
     {},
     R"(model.enable_cuda_graph = true and model.cuda_graph_impl = "full_iteration" contradict each other: the old name )"
     "means local"},
    {"FlagOfAnotherType",
     R"({"enable_cuda_graph": "yes"})",
     R"({"enable_cuda_graph": "yes"})",
     {},
     R"(enable_cuda_graph: expected true or false, got "yes")"},
    {"ScopeAndModules",
     R"({"cuda_graph_scope": ["attn"], "cuda_graph_modules": ["mlp"]})",
     R"({"cuda_graph_scope": ["attn"], "cuda_graph_modules": ["mlp"]})",
     {},
     R"(cuda_graph_scope = ["attn"] and cuda_graph_modules = ["mlp"] contradict each other: the first is the old name of )"
     "the second"},
    {"FullAndModules",
     R"({"cuda_graph_modules": ["full", "attn"]})",
     R"({"cuda_graph_modules": ["full", "attn"]})",
     {},
     R"(cuda_graph_modules = ["full","attn"]: full means whole layers, and cannot be combined with other modules)"},
    {"FullIterationAndModules",
     R"({"cuda_graph_modules": ["full_iteration", "attn"]})",
     R"({"cuda_graph_modules": ["full_iteration", "attn"]})",
     {},
     R"(cuda_graph_modules = ["full_iteration","attn"]: full_iteration cannot be combined with other modules)"},
    {"FullIterationOfTransformerEngine",
     R"({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["full_iteration"]})",
     R"({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["full_iteration"]})",
     {},
     R"(cuda_graph_modules = ["full_iteration"] and cuda_graph_impl = "transformer_engine" contradict each other: )"
     "full_iteration is an implementation of its own"},
    {"FullIterationAndInference",
     R"({"cuda_graph_modules": ["full_iteration"], "inference_cuda_graph_scope": "layer"})",
     R"({"cuda_graph_modules": ["full_iteration"], "inference_cuda_graph_scope": "layer"})",
     {},
     R"(cuda_graph_modules = ["full_iteration"] and inference_cuda_graph_scope = "layer" contradict each other: )"
     "full_iteration does not serve inference"},
    {"InferenceOfBlocksAndOfLayers",
     R"({"cuda_graph_impl": "local", "cuda_graph_modules": ["full_iteration_inference"],
         "inference_cuda_graph_scope": "layer"})",
     R"({"cuda_graph_impl": "local", "cuda_graph_modules": ["full_iteration_inference"],
         "inference_cuda_graph_scope": "layer"})",
     {},
     R"(cuda_graph_modules = ["full_iteration_inference"] and inference_cuda_graph_scope = "layer" contradict each )"
     "other: the old name means block"},
    {"InferenceOfBlocksOfAnIteration",
     R"({"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["full_iteration_inference"]})",
     R"({"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["full_iteration_inference"]})",
     {},
     R"(cuda_graph_modules = ["full_iteration_inference"] and cuda_graph_impl = "full_iteration" contradict each other: )"
     "only local graphs serve inference"},
    {"TwoOldModules",
     R"({"cuda_graph_modules": ["full_iteration", "full_iteration_inference"]})",
     R"({"cuda_graph_modules": ["full_iteration", "full_iteration_inference"]})",
     {},
     R"(cuda_graph_modules = ["full_iteration","full_iteration_inference"]: full, full_iteration and )"
     "full_iteration_inference exclude each other"},
};

std::string name_of(const ::testing::TestParamInfo<Case>& one) { return one.param.name; }
INSTANTIATE_TEST_SUITE_P(Files, ConfigMigrationTest, ::testing::ValuesIn(kMigrations), name_of);

}  // namespace
}  // namespace pianola::migration_test
