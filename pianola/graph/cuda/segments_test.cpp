#include <pianola/graph/cuda/segments.hpp>

#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <gtest/gtest.h>

#include <span>

namespace pianola::graph::segments_test {
namespace {

class SegmentsTest : public pianola::testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    driver = &Driver::get();
    check(driver->graph_create(&inner, 0), "cuGraphCreate");
    check(driver->graph_create(&graph, 0), "cuGraphCreate");
  }
  void TearDown() override {
    if (graph != nullptr) driver->graph_destroy(graph);
    if (inner != nullptr) driver->graph_destroy(inner);
    DeviceTest::TearDown();
  }
  [[nodiscard]] bool any_of_no_operation(std::span<const CUgraphNode> before = {}) const {
    return Segments(graph, OpTrace(), before, {}, [](ExecutableMemory) {}).any_of_no_operation();
  }

  const Driver* driver = nullptr;
  CUgraph inner = nullptr, graph = nullptr;
  CUgraphNode node = nullptr;
};
INSTANTIATE_TEST_SUITE_P(On, SegmentsTest, ::testing::Values("cuda"), pianola::testing::device_name);

TEST_P(SegmentsTest, ANodeThatOnlyWaitsIsNoWork) {
  check(driver->graph_add_empty_node(&node, graph, nullptr, 0), "cuGraphAddEmptyNode");
  EXPECT_FALSE(any_of_no_operation());
}

// As a step captures it that launches another graph.
TEST_P(SegmentsTest, AGraphInsideOfTheGraphIsWorkOfNoOperation) {
  check(driver->graph_add_child_graph_node(&node, graph, nullptr, 0, inner), "cuGraphAddChildGraphNode");
  EXPECT_TRUE(any_of_no_operation());
  EXPECT_FALSE(any_of_no_operation({&node, 1})) << "where it is known whose it is";
}

}  // namespace
}  // namespace pianola::graph::segments_test
