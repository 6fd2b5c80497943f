#include <pianola/cuda/rewired_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/executable.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pianola::rewired_graph_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

std::vector<std::pair<std::size_t, std::size_t>> pairs(const std::vector<GraphEdge>& edges) {
  std::vector<std::pair<std::size_t, std::size_t>> result;
  for (const GraphEdge& edge : edges) result.emplace_back(edge.from, edge.to);
  return result;
}

TEST(RewiredGraphTest, SaysThatCudaCannotCloneTheGraph) {
  FakeDriver fake;
  FakeDriver::Graph graph;
  fake.failures["cuGraphClone"] = CUDA_ERROR_NOT_SUPPORTED;
  const GraphTopology topology = GraphTopology::read(graph.handle(), fake.table());
  EXPECT_THAT([&] { (void)RewiredGraph::make(graph.handle(), topology, {}, fake.table()); },
              ThrowsMessage<DeviceError>(HasSubstr("cuGraphClone failed: CUDA_ERROR_NOT_SUPPORTED")));
}

class GpuRewiredGraph : public GpuTest {};

TEST_F(GpuRewiredGraph, HasTheEdgesItIsGivenAndTheOriginalKeepsItsOwn) {
  CUgraph graph = chain(3, 7);
  const GraphTopology topology = GraphTopology::read(graph);
  const std::vector<std::size_t> order = topology.topological_order();
  const GraphEdge edges[] = {{.from = order[0], .to = order[2]}};
  {
    const RewiredGraph rewired = RewiredGraph::make(graph, topology, edges);
    EXPECT_THAT(pairs(rewired.read_edges()), UnorderedElementsAre(Pair(order[0], order[2])));
    EXPECT_THAT(pairs(GraphTopology::read(graph).edges()),
                UnorderedElementsAre(Pair(order[0], order[1]), Pair(order[1], order[2])));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rewired.position_of(rewired.node(i)), i);
    Executable::instantiate(rewired.get()).launch(stream);
  }
  EXPECT_EQ(read(data), 21U);
  driver->graph_destroy(graph);
}

// Inductor's kernels may begin before those that they depend on have ended, and wait themselves; which lane such a kernel
// would wait for is not known to it.
TEST_F(GpuRewiredGraph, HasAnOrdinaryEdgeWhereTheOriginalHasAProgrammaticOne) {
  CUgraph graph = chain(2, 7);
  const GraphTopology plain = GraphTopology::read(graph);
  const GraphEdge edge = plain.edges().at(0);
  CUgraphNode from = plain.nodes()[edge.from].handle, to = plain.nodes()[edge.to].handle;
  CUgraphEdgeData programmatic = {};
  programmatic.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  programmatic.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  ASSERT_EQ(driver->graph_remove_dependencies(graph, &from, &to, &edge.data, 1), CUDA_SUCCESS);
  ASSERT_EQ(driver->graph_add_dependencies(graph, &from, &to, &programmatic, 1), CUDA_SUCCESS);
  const GraphTopology topology = GraphTopology::read(graph);
  ASSERT_TRUE(topology.edges().at(0).is_programmatic());
  {
    const GraphEdge edges[] = {{.from = edge.from, .to = edge.to}};
    const RewiredGraph rewired = RewiredGraph::make(graph, topology, edges);
    EXPECT_FALSE(rewired.read_edges().at(0).is_programmatic());
    EXPECT_TRUE(GraphTopology::read(graph).edges().at(0).is_programmatic());
    Executable::instantiate(rewired.get()).launch(stream);
  }
  EXPECT_EQ(read(data), 14U);
  driver->graph_destroy(graph);
}

TEST_F(GpuRewiredGraph, MayHaveNoEdgesAtAllAndMoves) {
  CUgraph graph = chain(4, 1);
  RewiredGraph first = RewiredGraph::make(graph, GraphTopology::read(graph), {});
  RewiredGraph second = std::move(first);
  EXPECT_THAT(second.read_edges(), IsEmpty());
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question.
  first = std::move(second);
  Executable::instantiate(first.get()).launch(stream);
  EXPECT_EQ(read(data), 4U);
  driver->graph_destroy(graph);
}

TEST_F(GpuRewiredGraph, RefusesACycleAndLeavesTheOriginalAlone) {
  CUgraph graph = chain(2, 1);
  const GraphEdge edges[] = {{.from = 0, .to = 1}, {.from = 1, .to = 0}};
  const GraphTopology topology = GraphTopology::read(graph);
  EXPECT_THROW((void)Executable::instantiate(RewiredGraph::make(graph, topology, edges).get()), DeviceError);
  Executable::instantiate(graph).launch(stream);
  EXPECT_EQ(read(data), 2U);
  driver->graph_destroy(graph);
}

}  // namespace
}  // namespace pianola::rewired_graph_test
