#include <pianola/config/environment.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace pianola::environment_test {
namespace {

// A variable of the environment as long as the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_ = {};
};

class ConfigEnvironmentTest : public ::testing::Test {
 protected:
  Variable old_options{"PYTORCH_CUDA_ALLOC_CONF", nullptr};
  Variable new_options{"PYTORCH_ALLOC_CONF", nullptr};
  Variable nccl{"NCCL_GRAPH_REGISTER", nullptr};
  Variable priority{"CUDA_GRAPHS_USE_NODE_PRIORITY", nullptr};
};

TEST_F(ConfigEnvironmentTest, AnEmptyEnvironmentSaysNothing) { EXPECT_EQ(with_environment({}), CudaGraphConfig()); }

TEST_F(ConfigEnvironmentTest, VariablesFillInWhatIsNotSaid) {
  const Variable options("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
  const Variable off("NCCL_GRAPH_REGISTER", "0");
  const Variable on("CUDA_GRAPHS_USE_NODE_PRIORITY", "1");
  const CudaGraphConfig config = with_environment({});
  EXPECT_EQ(config.pytorch_cuda_alloc_conf, "expandable_segments:True");
  EXPECT_EQ(config.nccl_graph_register, 0);
  EXPECT_EQ(config.cuda_graphs_use_node_priority, 1);
}

TEST_F(ConfigEnvironmentTest, TheNewerNameOfTheAllocatorsOptionsCountsToo) {
  const Variable options("PYTORCH_ALLOC_CONF", "expandable_segments:True");
  EXPECT_EQ(with_environment({}).pytorch_cuda_alloc_conf, "expandable_segments:True");
}

TEST_F(ConfigEnvironmentTest, WhatTheConfigurationSaysStays) {
  const Variable on("NCCL_GRAPH_REGISTER", "1");
  EXPECT_EQ(with_environment({.nccl_graph_register = 0}).nccl_graph_register, 0);
}

TEST_F(ConfigEnvironmentTest, AVariableThatIsNoNumberIsLeftOut) {
  const Variable on("NCCL_GRAPH_REGISTER", "yes");
  EXPECT_FALSE(with_environment({}).nccl_graph_register);
}

}  // namespace
}  // namespace pianola::environment_test
