#include <pianola/torch_abi/cuda/workspace_size.hpp>

#include <gtest/gtest.h>

namespace pianola::torch_abi::workspace_size_test {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;

TEST(WorkspaceBytes, AreWhatCublasRecommendsForTheDevice) {
  EXPECT_EQ(workspace_bytes_of("", 9), 32 * kMiB);
  EXPECT_EQ(workspace_bytes_of("", 10), 32 * kMiB);
  EXPECT_EQ(workspace_bytes_of("", 12), 32 * kMiB);
  EXPECT_EQ(workspace_bytes_of("", 8), 8 * kMiB + 128 * 1024);
  EXPECT_EQ(workspace_bytes_of("", 11), 8 * kMiB + 128 * 1024);
}

TEST(WorkspaceBytes, AreThoseOfAllPairsThatTheUserSets) {
  EXPECT_EQ(workspace_bytes_of(":4096:8", 8), 32 * kMiB);
  EXPECT_EQ(workspace_bytes_of(":4096:2:16:8", 9), 8 * kMiB + 128 * 1024);
  EXPECT_EQ(workspace_bytes_of(":0:0", 9), 0U);
}

TEST(WorkspaceBytes, AreTheRecommendedOnesWhereTheSettingSaysNothing) {
  EXPECT_EQ(workspace_bytes_of("none", 9), workspace_bytes_of("", 9));
}

}  // namespace
}  // namespace pianola::torch_abi::workspace_size_test
