#include <pianola/cuda/topology.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <variant>

namespace pianola::topology_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::uint32_t as_uint32(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

const KernelNode& kernel_of(const GraphNode& node) { return std::get<KernelNode>(node.details); }

class Topology : public ::testing::Test {
 protected:
  GraphTopology read() { return GraphTopology::read(graph.handle(), fake.table()); }

  FakeDriver::Node kernel_node() {
    FakeDriver::Node node{.type = CU_GRAPH_NODE_TYPE_KERNEL};
    node.kernel.func = FakeDriver::as_function(function);
    node.kernel.gridDimX = 4;
    node.kernel.gridDimY = 2;
    node.kernel.gridDimZ = 1;
    node.kernel.blockDimX = 128;
    node.kernel.blockDimY = node.kernel.blockDimZ = 1;
    node.kernel.sharedMemBytes = 512;
    node.kernel.kernelParams = arguments.data();
    return node;
  }

  FakeDriver fake;
  FakeDriver::Graph graph;
  FakeDriver::Function function{.symbol = "_ZN2at3addEPfi", .parameters = {{0, 8}, {8, 4}}};
  std::uint64_t address = 0x1122334455667788;
  std::uint32_t count = 42;
  std::array<void*, 2> arguments = {&address, &count};
};

TEST_F(Topology, ReadsKernelsWithNameShapeAndArguments) {
  graph.add(kernel_node());
  const GraphTopology topology = read();
  ASSERT_THAT(topology.nodes(), SizeIs(1));
  const KernelNode& kernel = kernel_of(topology.nodes()[0]);
  EXPECT_EQ(kernel.function->symbol, "_ZN2at3addEPfi");
  EXPECT_EQ(kernel.function->name, "at::add(float*, int)");
  EXPECT_EQ(kernel.function->short_name, "at::add");
  EXPECT_EQ(kernel.grid, (Dim3{4, 2, 1}));
  EXPECT_EQ(kernel.block, (Dim3{128, 1, 1}));
  EXPECT_EQ(kernel.shared_bytes, 512U);
  EXPECT_THAT(kernel.arguments, SizeIs(12));
  EXPECT_EQ(as_uint32(kernel.argument(1)), 42U);
  EXPECT_EQ(std::memcmp(kernel.argument(0).data(), &address, 8), 0);
  EXPECT_EQ(to_string(topology.nodes()[0]), "kernel at::add");
}

TEST_F(Topology, ReadsArgumentsThatWerePassedAsOneBlock) {
  std::array<std::byte, 12> block = {};
  std::memcpy(block.data() + 8, &count, 4);
  std::size_t size = block.size();
  std::array<void*, 5> extra = {CU_LAUNCH_PARAM_BUFFER_POINTER, block.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                                CU_LAUNCH_PARAM_END};
  FakeDriver::Node node = kernel_node();
  node.kernel.kernelParams = nullptr;
  node.kernel.extra = extra.data();
  graph.add(node);
  const GraphTopology topology = read();
  EXPECT_EQ(as_uint32(kernel_of(topology.nodes()[0]).argument(1)), 42U);
}

TEST_F(Topology, ReadsKernelsGivenByKernelHandleInEitherField) {
  fake.kernels_only = {&function};
  FakeDriver::Node disguised = kernel_node();
  FakeDriver::Node proper = kernel_node();
  proper.kernel.func = nullptr;
  proper.kernel.kern = FakeDriver::as_kernel(function);
  graph.add(disguised);
  graph.add(proper);
  const GraphTopology topology = read();
  for (const GraphNode& node : topology.nodes()) {
    EXPECT_EQ(kernel_of(node).function->short_name, "at::add");
    EXPECT_EQ(as_uint32(kernel_of(node).argument(1)), 42U);
  }
}

TEST_F(Topology, SharesOneFunctionBetweenItsLaunches) {
  graph.add(kernel_node());
  graph.add(kernel_node());
  const GraphTopology topology = read();
  EXPECT_EQ(kernel_of(topology.nodes()[0]).function, kernel_of(topology.nodes()[1]).function);
}

TEST_F(Topology, KeepsANodeThatTheDriverDoesNotExplain) {
  graph.add(kernel_node());
  fake.kernels_only = {&function};
  fake.failures["cuKernelGetName"] = CUDA_ERROR_INVALID_HANDLE;
  const GraphTopology unnamed = read();
  EXPECT_EQ(kernel_of(unnamed.nodes()[0]).function->short_name, "(unnamed)");
  EXPECT_THAT(kernel_of(unnamed.nodes()[0]).arguments, IsEmpty());
  fake.failures["cuGraphKernelNodeGetParams"] = CUDA_ERROR_NOT_SUPPORTED;
  const GraphTopology opaque = read();
  EXPECT_EQ(opaque.nodes()[0].type, NodeType::kernel);
  EXPECT_EQ(opaque.nodes()[0].kernel(), nullptr);
  EXPECT_EQ(to_string(opaque.nodes()[0]), "kernel");
}

TEST_F(Topology, ReadsCopiesFillsAndAllocations) {
  FakeDriver::Node copy{.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  copy.memcpy.srcXInBytes = 16;
  copy.memcpy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.memcpy.srcHost = &count;
  copy.memcpy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.memcpy.dstDevice = 0x1000;
  copy.memcpy.dstY = 2;
  copy.memcpy.dstPitch = 256;
  copy.memcpy.WidthInBytes = 64;
  copy.memcpy.Height = 3;
  graph.add(copy);
  FakeDriver::Node fill{.type = CU_GRAPH_NODE_TYPE_MEMSET};
  fill.memset = {.dst = 0x2000, .pitch = 0, .value = 7, .elementSize = 4, .width = 10, .height = 1};
  graph.add(fill);
  graph.add({.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .memory = {.address = 0x3000, .bytes = 99}});
  graph.add({.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = {.address = 0x3000}});

  const GraphTopology topology = read();
  const MemcpyNode& copied = std::get<MemcpyNode>(topology.nodes()[0].details);
  EXPECT_EQ(copied.source, reinterpret_cast<std::uintptr_t>(&count) + 16);
  EXPECT_EQ(copied.source_type, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(copied.destination, 0x1200U);
  EXPECT_EQ(copied.bytes, 192U);
  EXPECT_EQ(copied.rows, 3U);
  const MemsetNode& filled = std::get<MemsetNode>(topology.nodes()[1].details);
  EXPECT_EQ(filled.destination, 0x2000U);
  EXPECT_EQ(filled.bytes, 40U);
  EXPECT_EQ(filled.value, 7U);
  EXPECT_EQ(std::get<MemoryNode>(topology.nodes()[2].details).bytes, 99U);
  EXPECT_EQ(std::get<MemoryNode>(topology.nodes()[3].details).address, 0x3000U);
  EXPECT_EQ(to_string(topology.nodes()[2]), "mem_alloc of 99 bytes");
  EXPECT_EQ(to_string(topology.nodes()[3]), "mem_free");
}

TEST_F(Topology, NamesEveryTypeThatCudaHas) {
  for (int type = CU_GRAPH_NODE_TYPE_KERNEL; type <= CU_GRAPH_NODE_TYPE_CONDITIONAL; ++type) {
    EXPECT_NE(to_string(node_type(static_cast<CUgraphNodeType>(type))), "unknown") << type;
  }
  EXPECT_EQ(node_type(static_cast<CUgraphNodeType>(14)), NodeType::unknown);
  EXPECT_EQ(to_string(NodeType::unknown), "unknown");
}

TEST_F(Topology, KeepsEdgesWithTheirData) {
  CUgraphNode a = graph.add_empty();
  CUgraphEdgeData programmatic = {};
  programmatic.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CUgraphNode b = graph.add({.dependencies = {{a, programmatic}}});
  graph.add_empty({a, b});
  const GraphTopology topology = read();
  ASSERT_THAT(topology.edges(), SizeIs(3));
  EXPECT_TRUE(topology.edges()[0].is_programmatic());
  EXPECT_FALSE(topology.edges()[1].is_programmatic());
  EXPECT_EQ(topology.edges()[2].from, 1U);
  EXPECT_EQ(topology.edges()[2].to, 2U);
  EXPECT_EQ(topology.index_of(b), 1U);
  EXPECT_EQ(topology.index_of(nullptr), std::nullopt);
}

TEST_F(Topology, CountsNodesByTypeWithThoseOfChildGraphs) {
  FakeDriver::Graph inner;
  inner.add(kernel_node());
  inner.add_empty();
  graph.add(kernel_node());
  graph.add({.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = &inner});
  const GraphTopology topology = read();
  EXPECT_THAT(topology.count_by_type(), ElementsAre(Pair("child_graph", 1), Pair("empty", 1), Pair("kernel", 2)));
  EXPECT_THAT(std::get<ChildGraphNode>(topology.nodes()[1].details).graph->nodes(), SizeIs(2));
  EXPECT_EQ(to_string(topology.nodes()[1]), "child_graph of 2 nodes");
}

TEST_F(Topology, OrdersNodesBehindTheirDependencies) {
  CUgraphNode last = graph.add_empty();
  CUgraphNode root = graph.add_empty();
  CUgraphNode middle = graph.add_empty({root});
  graph.nodes[0].dependencies = {{middle}, {root}};
  graph.add_empty({root});
  EXPECT_THAT(read().topological_order(), ElementsAre(1, 2, 0, 3));
  graph.nodes[1].dependencies = {{last}};
  EXPECT_THAT([&] { (void)read().topological_order(); }, ThrowsMessage<UsageError>(HasSubstr("cycle: 4 of its 4")));
}

TEST_F(Topology, IsEmptyForAnEmptyGraph) {
  const GraphTopology topology = read();
  EXPECT_THAT(topology.nodes(), IsEmpty());
  EXPECT_THAT(topology.edges(), IsEmpty());
  EXPECT_THAT(topology.topological_order(), IsEmpty());
  EXPECT_THAT(topology.count_by_type(), IsEmpty());
}

TEST_F(Topology, ThrowsWhichCallFailed) {
  graph.add_empty();
  for (const char* call : {"cuGraphGetNodes", "cuGraphGetEdges", "cuGraphNodeGetType"}) {
    fake.failures = {{call, CUDA_ERROR_INVALID_VALUE}};
    EXPECT_THAT([&] { (void)read(); }, ThrowsMessage<DeviceError>(HasSubstr(std::string(call) + " failed")));
  }
}

TEST_F(Topology, IsWrittenForGraphviz) {
  FakeDriver::Graph inner;
  inner.add_empty();
  CUgraphNode kernel = graph.add(kernel_node());
  CUgraphEdgeData programmatic = {};
  programmatic.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  graph.add({.type = CU_GRAPH_NODE_TYPE_GRAPH, .dependencies = {{kernel, programmatic}}, .child = &inner});
  std::ostringstream out;
  read().to_dot(out, [](std::size_t node) { return node == 0 ? "aten::\"add\"" : ""; });
  EXPECT_EQ(out.str(),
            "digraph graph_ {\n"
            "  node [fontname=\"monospace\"];\n"
            "  n0 [label=\"0: kernel at::add\\ngrid 4x2x1, block 128x1x1\\naten::\\\"add\\\"\", shape=box];\n"
            "  n1 [label=\"1: child_graph of 1 nodes\", shape=ellipse];\n"
            "  subgraph cluster_n1 {\n"
            "    label=\"child graph of 1\";\n"
            "    n1_0 [label=\"0: empty\", shape=ellipse];\n"
            "  }\n"
            "  n0 -> n1 [style=dashed];\n"
            "}\n");
}

class GpuTopology : public GpuTest {};

TEST_F(GpuTopology, ReadsACapturedChain) {
  CUgraph graph = chain(3, 7);
  const GraphTopology topology = GraphTopology::read(graph);
  ASSERT_THAT(topology.nodes(), SizeIs(3));
  EXPECT_THAT(topology.edges(), SizeIs(2));
  EXPECT_THAT(topology.topological_order(), SizeIs(3));
  EXPECT_THAT(topology.count_by_type(), ElementsAre(Pair("kernel", 3)));
  for (const GraphNode& node : topology.nodes()) {
    EXPECT_EQ(kernel_of(node).function->short_name, "add_to");
    EXPECT_EQ(kernel_of(node).block, (Dim3{1, 1, 1}));
    ASSERT_THAT(kernel_of(node).function->parameters, SizeIs(2));
    EXPECT_EQ(kernel_of(node).function->parameters[1].offset, 8U);
    EXPECT_EQ(std::memcmp(kernel_of(node).argument(0).data(), &data, sizeof data), 0);
    EXPECT_EQ(as_uint32(kernel_of(node).argument(1)), 7U);
  }
  driver->graph_destroy(graph);
}

TEST_F(GpuTopology, ReadsCopiesAndFills) {
  begin_capture();
  check(driver->memset_d8_async(data, 1, 32, stream), "cuMemsetD8Async");
  check(driver->memcpy_dtod_async(data + 32, data, 16, stream), "cuMemcpyDtoDAsync");
  CUgraph graph = end_capture();
  const GraphTopology topology = GraphTopology::read(graph);
  ASSERT_THAT(topology.nodes(), SizeIs(2));
  const auto& fill = std::get<MemsetNode>(topology.nodes()[0].details);
  EXPECT_EQ(fill.destination, data);
  EXPECT_EQ(fill.bytes, 32U);
  const auto& copy = std::get<MemcpyNode>(topology.nodes()[1].details);
  EXPECT_EQ(copy.source, data);
  EXPECT_EQ(copy.destination, data + 32);
  EXPECT_EQ(copy.bytes, 16U);
  driver->graph_destroy(graph);
}

TEST_F(GpuTopology, ReadsAKernelThatWasLaunchedWithABlockOfArguments) {
  struct {
    CUdeviceptr address;
    std::uint32_t amount;
  } block{data, 9};
  std::size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  begin_capture();
  check(driver->launch_kernel(add, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra), "cuLaunchKernel");
  CUgraph graph = end_capture();
  const GraphTopology topology = GraphTopology::read(graph);
  ASSERT_THAT(topology.nodes(), SizeIs(1));
  EXPECT_EQ(as_uint32(kernel_of(topology.nodes()[0]).argument(1)), 9U);
  driver->graph_destroy(graph);
}

TEST_F(GpuTopology, ReadsChildGraphs) {
  CUgraph inner = chain(2, 1);
  CUgraph outer = nullptr;
  CUgraphNode child = nullptr;
  CUgraphNode empty = nullptr;
  check(driver->graph_create(&outer, 0), "cuGraphCreate");
  check(driver->graph_add_child_graph_node(&child, outer, nullptr, 0, inner), "cuGraphAddChildGraphNode");
  check(driver->graph_add_empty_node(&empty, outer, &child, 1), "cuGraphAddEmptyNode");
  const GraphTopology topology = GraphTopology::read(outer);
  EXPECT_THAT(topology.count_by_type(), ElementsAre(Pair("child_graph", 1), Pair("empty", 1), Pair("kernel", 2)));
  EXPECT_EQ(topology.index_of(empty), 1U);
  driver->graph_destroy(outer);
  driver->graph_destroy(inner);
}

}  // namespace
}  // namespace pianola::topology_test
