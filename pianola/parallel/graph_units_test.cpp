#include <pianola/parallel/step_units.hpp>

#include <pianola/parallel/testing/graph_units_test.hpp>

#include <ATen/ops/add.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel::graph_units_test {
namespace {

using testing::address_of;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Call = testing::FakeStep::Call;

class GraphUnits : public testing::GraphUnitsTest {};

// ---- units in the order of the capture ----

TEST_F(GraphUnits, AreTheOperationsThatAddedNodes) {
  const auto all = units([&] { at::relu(at::mm(x, y).t()); });
  EXPECT_THAT(names(all), ElementsAre("aten::mm", "aten::relu"));
  EXPECT_EQ(all[0].op, 0U);
  EXPECT_EQ(all[1].op, 2U) << "t() added none";
  EXPECT_THAT(all[0].nodes, ElementsAre(0U));
  EXPECT_THAT(all[1].nodes, ElementsAre(1U));
  for (const Unit& unit : all) EXPECT_EQ(unit.barrier, "");
}

TEST_F(GraphUnits, HaveAllNodesOfAnOperationInOrder) {
  const Unit unit = unit_of_mm([&](const Call&) {
    step.fill({0x1000, 0x1100});
    step.kernel({});
    step.kernel({});
  });
  EXPECT_THAT(unit.nodes, ElementsAre(0U, 1U, 2U));
  EXPECT_GT(unit.cost_us, 4.5) << "1.5 us a node, and the bytes";
  EXPECT_LT(unit.cost_us, 4.6);
}

TEST_F(GraphUnits, FollowTheChainWhateverTheOrderOfTheNodes) {
  const OpTrace recorded = step.record([&] { at::relu(at::mm(x, y)); });
  // The driver lists nodes as it likes: turn the list round, and the chain with it.
  std::swap(step.graph.nodes[0].dependencies, step.graph.nodes[1].dependencies);
  step.graph.nodes[0].dependencies = {{.from = step.last()}};
  step.graph.nodes[1].dependencies = {};
  const StepUnits result = units_of(recorded, step.topology(), hidden, known, false);
  EXPECT_THAT(names(result.units), ElementsAre("aten::relu", "aten::mm"));
}

TEST_F(GraphUnits, OfAnEmptyGraphAreNone) {
  EXPECT_THAT(units([] {}), IsEmpty());
}

TEST_F(GraphUnits, IgnoreDependenciesThatFollowFromOthers) {
  const auto all = units([&] {
    at::relu(x);
    at::relu(x);
    at::relu(x);
    step.graph.nodes[2].dependencies.push_back({.from = reinterpret_cast<CUgraphNode>(&step.graph.nodes[0])});
  });
  EXPECT_THAT(all, SizeIs(3));
}

TEST_F(GraphUnits, OfNodesOutsideAnyOperationAreBarriers) {
  const auto all = units([&] {
    at::relu(x);
    step.kernel({}, "mine");
    step.kernel({}, "mine_too");
    at::relu(x);
  });
  ASSERT_THAT(names(all), ElementsAre("aten::relu", "nodes outside any operation", "aten::relu"));
  EXPECT_THAT(all[1].nodes, ElementsAre(1U, 2U));
  EXPECT_EQ(all[1].op, Unit::kNoOp);
  EXPECT_EQ(all[1].barrier, "kernel mine outside any operation may touch anything");
  EXPECT_EQ(all[2].barrier, "");
}

TEST_F(GraphUnits, OfAnOperationThatForeignNodesInterruptAreBarriers) {
  step.on("aten::mm", [&](const Call&) {
    step.kernel({});
    step.kernel({});
    step.kernel({});
  });
  OpTrace recorded = step.record([&] { at::mm(x, y); });
  // Put one more node behind the first, which nobody claims.
  FakeDriver::Node stranger{.type = CU_GRAPH_NODE_TYPE_EMPTY};
  stranger.dependencies = {{.from = reinterpret_cast<CUgraphNode>(&step.graph.nodes[0])}};
  const CUgraphNode handle = step.graph.add(stranger);
  step.graph.nodes[1].dependencies = {{.from = handle}};
  const StepUnits result = units_of(recorded, step.topology(), hidden, known, false);
  ASSERT_THAT(names(result.units), ElementsAre("aten::mm", "nodes outside any operation", "aten::mm"));
  EXPECT_EQ(result.units[0].barrier, "other nodes run between those of aten::mm");
  EXPECT_EQ(result.units[2].barrier, "other nodes run between those of aten::mm");
  EXPECT_FALSE(result.units[0].writes_unknown) << "its schema says it";
  EXPECT_TRUE(result.units[1].writes_unknown);
  EXPECT_FALSE(result.units[2].writes_unknown);
}

TEST_F(GraphUnits, TakeKnownNodesAsTheyAreDescribed) {
  const Access written{.bytes = testing::bytes_of(x), .write = true, .memory = Memory::outside, .owner = &x};
  known = {{.name = "copy of an input", .nodes = {}, .accesses = {written, {.bytes = {5, 5}}}},
           {.name = "seed and offset", .nodes = {}, .accesses = {}, .barrier = "it sets the generators"}};
  const auto all = units([&] {
    known[0].nodes = {step.copy({0x1000, 0x1040}, address_of(x))};
    known[1].nodes = {step.fill({0x2000, 0x2008}), step.fill({0x2008, 0x2010})};
    at::relu(x);
  });
  ASSERT_THAT(names(all), ElementsAre("copy of an input", "seed and offset", "aten::relu"));
  EXPECT_THAT(all[0].accesses, SizeIs(1)) << "empty spans do not occur";
  EXPECT_EQ(all[0].barrier, "");
  EXPECT_EQ(all[0].op, Unit::kNoOp);
  EXPECT_THAT(all[1].nodes, ElementsAre(1U, 2U));
  EXPECT_EQ(all[1].barrier, "it sets the generators");
}

TEST_F(GraphUnits, OfKnownNodesThatOthersInterruptAreBarriers) {
  known = {{.name = "copy of an input", .nodes = {}}};
  const auto all = units([&] {
    known[0].nodes.push_back(step.fill({0x1000, 0x1008}));
    at::relu(x);
    known[0].nodes.push_back(step.fill({0x1000, 0x1008}));
  });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].barrier, "other nodes run between those of copy of an input");
  EXPECT_EQ(all[2].barrier, all[0].barrier);
}

// ---- accesses ----

TEST_F(GraphUnits, ReadArgumentsAndWriteResultsAndArgumentsInPlace) {
  at::Tensor made;
  const auto all = units([&] {
    made = at::mm(x, y);
    y.add_(made);
  });
  EXPECT_EQ(use(all[0], x) + use(all[0], y) + use(all[0], made), "rrw");
  EXPECT_EQ(use(all[1], made) + use(all[1], y), "rw");
  EXPECT_THAT(of(all[0], Memory::outside), SizeIs(2));
  EXPECT_THAT(of(all[0], Memory::made), SizeIs(1));
}

TEST_F(GraphUnits, WriteTheBlocksAllocatedInside) {
  const ByteSpan scratch{0x7000, 0x7100};
  ByteSpan block;
  const Unit unit = unit_of_mm([&](const Call& call) {
    block = testing::bytes_of(call.outputs[0]);
    block.end += 448;  // the allocator rounds up
    step.allocate(block);
    step.allocate(scratch);
    step.kernel({});
  });
  EXPECT_EQ(use(unit, scratch), "w");
  EXPECT_EQ(use(unit, block), "w");
  const auto made = of(unit, Memory::made);
  ASSERT_THAT(made, SizeIs(2)) << "the result is part of its block";
  EXPECT_NE(made[0].owner, made[1].owner);
  EXPECT_THAT(made, ::testing::Contains(Field(&Access::owner, trace.outputs(trace.ops()[0])[0].storage)));
}

TEST_F(GraphUnits, ThatReadAndWriteNothingWithElementsHaveNoAccess) {
  const at::Tensor none = at::ones({0, 4});
  const auto all = units([&] { at::relu(none); });
  EXPECT_THAT(all.at(0).accesses, IsEmpty());
}

TEST_F(GraphUnits, WithTensorsOfAnotherDeviceAreBarriers) {
  const at::Tensor elsewhere = at::empty({4, 4}, c10::Device(c10::kMeta));
  const auto all = units([&] {
    at::mm(x, x);
    at::mm(elsewhere, elsewhere);
  });
  EXPECT_EQ(all[0].barrier, "");
  EXPECT_EQ(all[1].barrier, "aten::mm has a tensor on another device than the step");
}

TEST_F(GraphUnits, WithSparseTensorsAreBarriers) {
  const at::Tensor sparse = at::ones({3, 3}).to_sparse();
  step.on("aten::mul.Tensor", [&](const Call&) { step.kernel({}); });
  const auto all = units([&] { at::mul(sparse, sparse); });
  EXPECT_THAT(all.at(0).barrier, HasSubstr("has a tensor without memory of its own (sparse or opaque)"));
}

// ---- workspaces and generators ----

class HiddenMemoryOfUnits : public testing::GraphUnitsTest {
 protected:
  HiddenMemoryOfUnits() {
    hidden.workspaces = {{0x100000, 0x200000}, {0x300000, 0x301000}};
    hidden.generators = {{0x500000, 0x500008}, {0x600000, 0x600008}};
  }
};

TEST_F(HiddenMemoryOfUnits, IsTheWorkspaceThatAKernelPointsInto) {
  const Unit unit = unit_of_mm([&](const Call&) {
    step.kernel({});
    step.kernel({7, 0x300010});
  });
  ASSERT_THAT(of(unit, Memory::workspace), SizeIs(1));
  EXPECT_EQ(use(unit, hidden.workspaces[1]), "w");
}

TEST_F(HiddenMemoryOfUnits, IsTheWorkspaceThatAFillOrACopyTouches) {
  EXPECT_EQ(use(unit_of_mm([&](const Call&) { step.fill({0x2ffff0, 0x300010}); }), hidden.workspaces[1]), "w");
  step.graph.nodes.clear();
  const Unit copy = unit_of_mm([&](const Call&) { step.copy({0x1ffff0, 0x200010}, 0x900000); });
  EXPECT_EQ(use(copy, hidden.workspaces[0]), "w") << "its end was filled by a kernel of the same product";
}

TEST_F(HiddenMemoryOfUnits, IsNoWorkspaceWhereNoKernelPointsIntoOne) {
  const Unit unit = unit_of_mm([&](const Call&) { step.kernel({0x200000, 0x301000}); });
  EXPECT_THAT(of(unit, Memory::workspace), IsEmpty()) << "both are behind the end";
}

TEST_F(HiddenMemoryOfUnits, IsEverythingWhereAKernelCannotBeRead) {
  const Unit unit = unit_of_mm([&](const Call&) {
    step.kernel({});
    step.unreadable_kernel();
  });
  EXPECT_THAT(of(unit, Memory::workspace), SizeIs(2));
  EXPECT_THAT(of(unit, Memory::generator), SizeIs(2));
}

TEST_F(HiddenMemoryOfUnits, IsTheGeneratorsForOperationsThatDraw) {
  const auto all = units([&] {
    at::relu(x);
    at::bernoulli(x);
  });
  EXPECT_THAT(of(all[0], Memory::generator), IsEmpty());
  EXPECT_EQ(use(all[1], hidden.generators[0]) + use(all[1], hidden.generators[1]), "rr");
}

TEST_F(HiddenMemoryOfUnits, IsTheGeneratorThatAKernelPointsInto) {
  const Unit unit = unit_of_mm([&](const Call&) { step.kernel({0x600000}); });
  EXPECT_EQ(use(unit, hidden.generators[0]) + use(unit, hidden.generators[1]), "r");
}

TEST_F(HiddenMemoryOfUnits, CostsNothing) {
  const Unit with = unit_of_mm([&](const Call&) { step.kernel({0x100000}); });
  step.graph.nodes.clear();
  const Unit without = unit_of_mm([&](const Call&) { step.kernel({}); });
  EXPECT_DOUBLE_EQ(with.cost_us, without.cost_us);
}

// ---- speed ----

TEST_F(GraphUnits, AreFoundQuickly) {
  constexpr std::size_t kNodes = 10000;
  for (std::uintptr_t i = 0; i < 4; ++i) hidden.workspaces.push_back({0x100000 * (i + 1), 0x100000 * (i + 1) + 0x8000});
  step.on("aten::relu", [&](const Call& call) {
    std::vector<std::uintptr_t> words(64, address_of(call.inputs[0]));
    step.kernel(std::move(words));
  });
  const OpTrace recorded = step.record([&] {
    for (std::size_t i = 0; i < kNodes; ++i) at::relu(x);
  });
  const GraphTopology topology = step.topology();
  const auto start = std::chrono::steady_clock::now();
  const StepUnits result = units_of(recorded, topology, hidden, known, true);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_THAT(result.units, SizeIs(kNodes));
  EXPECT_LT(took.count(), 1.0) << "10000 nodes take some 20 ms; a quadratic loop takes many seconds";
  RecordProperty("milliseconds", static_cast<int>(took.count() * 1e3));
}

}  // namespace
}  // namespace pianola::parallel::graph_units_test
