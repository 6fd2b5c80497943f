#include <pianola/cuda/node_change.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/fake_driver.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace pianola::node_change_test {
namespace {

// A kernel of a number and an address, and nodes that launch it.
class NodeChangeTest : public ::testing::Test {
 protected:
  struct Arguments {
    double number;
    std::uint64_t address;
  };

  CUgraphNode kernel(FakeDriver::Function& function, Arguments& arguments) {
    FakeDriver::Node node;
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.kernel.func = FakeDriver::as_function(function);
    node.kernel.gridDimX = node.kernel.gridDimY = node.kernel.gridDimZ = 1;
    auto& pointers = pointers_.emplace_back();
    pointers = {&arguments.number, &arguments.address};
    node.kernel.kernelParams = pointers.data();
    return graph.add(std::move(node));
  }
  CUgraphNode memset(unsigned value, CUdeviceptr to = 1, std::size_t bytes = 8) {
    FakeDriver::Node node;
    node.type = CU_GRAPH_NODE_TYPE_MEMSET;
    node.memset = {.dst = to, .pitch = 0, .value = value, .elementSize = 1, .width = bytes, .height = 1};
    return graph.add(std::move(node));
  }

  FakeDriver fake;
  FakeDriver::Function scale{.symbol = "scale", .parameters = {{0, 8}, {8, 8}}};
  FakeDriver::Graph graph;
  NodeReader reader{fake.table()};
  CUgraphExec executable = nullptr;
  std::deque<std::vector<void*>> pointers_;
};

constexpr std::uint64_t kRecorded = 0x7f00'0000'1000, kFresh = 0x7f00'0000'2000;
constexpr ByteSpan kBlock{.begin = kFresh - 16, .end = kFresh + 496};

TEST_F(NodeChangeTest, GivesTheNewNumberAndKeepsTheAddress) {
  Arguments before{.number = 0.5, .address = kRecorded}, after{.number = 0.25, .address = kFresh};
  const CUgraphNode node = kernel(scale, before);
  const MemoryAnew memory{.results = {{.captured = kRecorded - 16, .anew = kFresh - 16, .bytes = 64}}, .all = {kBlock}};
  auto change = NodeChange::between(reader.read(node), kernel(scale, after), reader, memory, fake.table());
  ASSERT_TRUE(change.has_value());
  change->apply(executable, node, fake.table());
  ASSERT_EQ(fake.kernels_set.size(), 1U);
  EXPECT_EQ(fake.kernels_set[0].node, node);
  Arguments given{};
  std::memcpy(&given.number, fake.kernels_set[0].arguments[0].data(), sizeof given.number);
  std::memcpy(&given.address, fake.kernels_set[0].arguments[1].data(), sizeof given.address);
  EXPECT_EQ(given.number, 0.25);
  EXPECT_EQ(given.address, kRecorded);
}

TEST_F(NodeChangeTest, AnotherFunctionIsLaunchedWhereThatIsAllowed) {
  FakeDriver::Function wide{.symbol = "scale_wide", .parameters = {{0, 8}, {8, 8}}};
  Arguments before{.number = 0.5, .address = kRecorded}, after{.number = 0.25, .address = kFresh};
  const CUgraphNode node = kernel(scale, before), anew = kernel(wide, after);
  MemoryAnew memory{.results = {{.captured = kRecorded - 16, .anew = kFresh - 16, .bytes = 64}}, .all = {kBlock}};
  const auto between = [&](OtherFunctions others) {
    return NodeChange::between(reader.read(node), anew, reader, memory, fake.table(), others);
  };
  EXPECT_FALSE(between(OtherFunctions::refused));
  auto change = between(OtherFunctions::allowed);
  ASSERT_TRUE(change.has_value());
  change->apply(executable, node, fake.table());
  std::uint64_t address = 0;
  std::memcpy(&address, fake.kernels_set.back().arguments[1].data(), sizeof address);
  EXPECT_EQ(address, kRecorded);
  memory.all.push_back({.begin = 0x7f00'0000'4000, .end = 0x7f00'0000'5000});
  EXPECT_FALSE(between(OtherFunctions::allowed)) << "scratch memory";
}

TEST_F(NodeChangeTest, ANumberThatLooksLikeAnAddressIsGiven) {
  Arguments before{.number = 0.5, .address = 1}, after{.number = 0.5, .address = kFresh};
  const CUgraphNode node = kernel(scale, before);
  auto change = NodeChange::between(reader.read(node), kernel(scale, after), reader, {}, fake.table());
  ASSERT_TRUE(change.has_value());
  change->apply(executable, node, fake.table());
  std::uint64_t given = 0;
  std::memcpy(&given, fake.kernels_set.at(0).arguments[1].data(), sizeof given);
  EXPECT_EQ(given, kFresh);
}

TEST_F(NodeChangeTest, WhatMayBeAnAddressOfScratchMemoryIsNotChanged) {
  Arguments before{.number = 0.5, .address = kRecorded}, after{.number = 0.25, .address = kFresh};
  const CUgraphNode node = kernel(scale, before);
  const MemoryAnew scratch{.results = {}, .all = {kBlock}};
  const MemoryAnew elsewhere{.results = {{.captured = kRecorded - 8, .anew = kFresh - 16, .bytes = 64}},
                             .all = {kBlock}};
  for (const MemoryAnew& memory : {scratch, elsewhere}) {
    EXPECT_FALSE(
        NodeChange::between(reader.read(node), kernel(scale, after), reader, memory, fake.table()).has_value());
  }
}

TEST_F(NodeChangeTest, AnotherKernelIsNoChangeOfNumbers) {
  FakeDriver::Function other{.symbol = "other", .parameters = scale.parameters};
  Arguments arguments{.number = 0.5, .address = 1};
  const CUgraphNode node = kernel(scale, arguments);
  EXPECT_FALSE(NodeChange::between(reader.read(node), kernel(other, arguments), reader, {}, fake.table()).has_value());
  EXPECT_FALSE(NodeChange::between(reader.read(node), memset(0), reader, {}, fake.table()).has_value());
}

TEST_F(NodeChangeTest, AFillIsGivenItsNewPlaceAndValue) {
  const CUgraphNode node = memset(3);
  auto change = NodeChange::between(reader.read(node), memset(4, 0x2000), reader, {}, fake.table());
  ASSERT_TRUE(change.has_value());
  change->apply(executable, node, fake.table());
  ASSERT_EQ(fake.fills_set.size(), 1U);
  EXPECT_EQ(fake.fills_set[0].params.dst, 0x2000U);
  EXPECT_EQ(fake.fills_set[0].params.value, 4U);
  EXPECT_TRUE(fake.kernels_set.empty());
  const MemoryAnew scratch{.results = {}, .all = {kBlock}};
  EXPECT_FALSE(NodeChange::between(reader.read(node), memset(3, kFresh), reader, scratch, fake.table()).has_value());
  EXPECT_FALSE(NodeChange::between(reader.read(node), memset(3, 1, 16), reader, {}, fake.table()).has_value());
}

TEST_F(NodeChangeTest, ACopyIsGivenItsNewPlaces) {
  const auto copy = [this](std::uint64_t from, std::uint64_t to, std::size_t bytes = 64) {
    FakeDriver::Node node;
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.memcpy.srcMemoryType = node.memcpy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    node.memcpy.srcDevice = from;
    node.memcpy.dstDevice = to;
    node.memcpy.WidthInBytes = bytes;
    node.memcpy.Height = node.memcpy.Depth = 1;
    return graph.add(std::move(node));
  };
  const CUgraphNode node = copy(0x1000, kRecorded);
  const MemoryAnew memory{.results = {{.captured = kRecorded, .anew = kFresh, .bytes = 64}}, .all = {kBlock}};
  auto change = NodeChange::between(reader.read(node), copy(0x2000, kFresh), reader, memory, fake.table());
  ASSERT_TRUE(change.has_value());
  change->apply(executable, node, fake.table());
  ASSERT_EQ(fake.copies_set.size(), 1U);
  EXPECT_EQ(fake.copies_set[0].params.srcDevice, 0x2000U);
  EXPECT_EQ(fake.copies_set[0].params.dstDevice, kRecorded);
  const MemoryAnew scratch{.results = {}, .all = {kBlock}};
  EXPECT_FALSE(NodeChange::between(reader.read(node), copy(0x2000, kFresh), reader, scratch, fake.table()).has_value());
  EXPECT_FALSE(
      NodeChange::between(reader.read(node), copy(0x2000, kRecorded, 32), reader, {}, fake.table()).has_value());
}

TEST_F(NodeChangeTest, SaysThatCudaRefuses) {
  Arguments arguments{.number = 0.5, .address = 1};
  const CUgraphNode node = kernel(scale, arguments);
  auto change = NodeChange::between(reader.read(node), kernel(scale, arguments), reader, {}, fake.table());
  fake.failures["cuGraphExecKernelNodeSetParams"] = CUDA_ERROR_INVALID_VALUE;
  EXPECT_THROW(change->apply(executable, node, fake.table()), DeviceError);
}

}  // namespace
}  // namespace pianola::node_change_test
