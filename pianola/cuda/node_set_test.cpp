#include <pianola/cuda/node_set.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace pianola::node_set_test {
namespace {

TEST(NodeSet, KnowsEachNodeOnceHoweverManyThereAre) {
  std::vector<long> memory(10000);  // Addresses as the driver gives them.
  NodeSet set;
  for (int round = 0; round < 2; ++round) {
    for (long& each : memory) EXPECT_EQ(set.insert(reinterpret_cast<CUgraphNode>(&each)), round == 0);
  }
  EXPECT_EQ(set.size(), memory.size());
}

TEST(NodeSet, ForgetsEverythingWhenCleared) {
  long node = 0;
  NodeSet set;
  EXPECT_TRUE(set.insert(reinterpret_cast<CUgraphNode>(&node)));
  set.clear();
  EXPECT_EQ(set.size(), 0U);
  EXPECT_TRUE(set.insert(reinterpret_cast<CUgraphNode>(&node)));
}

}  // namespace
}  // namespace pianola::node_set_test
