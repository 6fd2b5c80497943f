#include <pianola/parallel/plan.hpp>

#include <pianola/parallel/proof.hpp>
#include <pianola/parallel/testing/reference.hpp>
#include <pianola/parallel/testing/steps.hpp>
#include <pianola/parallel/without_cause.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::parallel::plan_test {
namespace {

using pianola::testing::barrier;
using pianola::testing::closure;
using pianola::testing::count_nodes;
using pianola::testing::RandomSteps;
using pianola::testing::read;
using pianola::testing::step;
using pianola::testing::storage;
using pianola::testing::to_string;
using pianola::testing::unit;
using pianola::testing::write;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr ByteSpan kBytes{0x1000, 0x2000};

std::string failure(const Plan& plan) { return prove(plan.units, count_nodes(plan.units), plan.edges).failure; }

TEST(Plan, OfNoUnitsIsEmpty) {
  const Plan plan = make_plan({}, 4);
  EXPECT_THAT(plan.edges, IsEmpty());
  EXPECT_THAT(plan.dependencies, IsEmpty());
  EXPECT_THAT(plan.obstacles, IsEmpty());
  EXPECT_EQ(plan.serial_us, 0);
  EXPECT_EQ(failure(plan), "");
}

TEST(Plan, OfOneUnitIsTheChainOfItsNodes) {
  Unit only = unit({write(kBytes)}, 6);
  only.nodes = {2, 0, 1};
  const Plan plan = make_plan({only}, 4);
  EXPECT_THAT(plan.edges, ElementsAre(NodeEdge{2, 0}, NodeEdge{0, 1}));
  EXPECT_EQ(plan.lanes.used, 1);
  EXPECT_EQ(plan.critical.us, 6);
  EXPECT_EQ(plan.serial_us, 6);
  EXPECT_EQ(failure(plan), "");
}

TEST(Plan, LeadsFromTheLastNodeOfAUnitToTheFirstOfTheNext) {
  std::vector<Unit> units = {unit({write(kBytes)}), unit({read(kBytes)})};
  units[0].nodes = {0, 1};
  units[1].nodes = {2, 3};
  EXPECT_THAT(make_plan(units, 2).edges, UnorderedElementsAre(NodeEdge{0, 1}, NodeEdge{1, 2}, NodeEdge{2, 3}));
}

TEST(Plan, ChainsTheUnitsOfALane) {
  const Plan one_lane = make_plan(step({unit({}, 1), unit({}, 2), unit({}, 3)}), 1);
  EXPECT_EQ(to_string(one_lane.dependencies), "1>0 lane, 2>1 lane");  // the longest first
  EXPECT_EQ(to_string(make_plan(step({unit({}), unit({}), unit({})}), 4).dependencies), "");
}

TEST(Plan, NamesTheTrueCauseWhereALaneFollowsADependency) {
  EXPECT_EQ(to_string(make_plan(step({unit({write(kBytes)}), unit({read(kBytes)})}), 1).dependencies), "0>1 value");
}

TEST(Plan, ChainsUnitsThatTakeNoTimeAsTheyDependOnEachOther) {
  const Plan plan = make_plan(step({unit({write({0, 8})}, 0), unit({}, 0), unit({read({0, 8})}, 0)}), 1);
  EXPECT_EQ(to_string(plan.dependencies), "0>1 lane, 1>2 lane");
  EXPECT_EQ(failure(plan), "");
}

TEST(Plan, HoldsWithABarrierFirstLastAndInTheMiddle) {
  const Unit work = unit({});
  for (const std::vector<Unit>& units :
       {std::vector{barrier("first"), work, work, work}, std::vector{work, work, work, barrier("last")},
        std::vector{work, barrier("middle"), work, work}, std::vector{barrier("only")}}) {
    const Plan plan = make_plan(step(units), 4);
    EXPECT_EQ(failure(plan), "") << to_string(units);
    EXPECT_THAT(plan.edges, SizeIs(units.size() - 1)) << to_string(units);
  }
}

// Two independent chains of 10 us that one obstacle holds behind each other.
std::vector<Unit> held_up(const Access& in_first, const Access& in_second) {
  return step({unit({write({0, 8}, storage(0))}, 5), unit({read({0, 8}, storage(0)), in_first}, 5),
               unit({write({16, 24}, storage(1)), in_second}, 5), unit({read({16, 24}, storage(1))}, 5)});
}

TEST(Plan, TellsWhatReuseOfMemoryCosts) {
  const Plan plan = make_plan(held_up(read({32, 40}, storage(2)), write({32, 40}, storage(3))), 4);
  EXPECT_EQ(plan.critical.us, 20);
  EXPECT_EQ(plan.without_reuse_us, 10);
  EXPECT_EQ(plan.without_workspaces_us, 20);
  EXPECT_EQ(plan.without_barriers_us, 20);
}

TEST(Plan, TellsWhatWorkspacesCost) {
  const Access scratch = write({32, 40}, nullptr, Memory::workspace);
  const Plan plan = make_plan(held_up(scratch, scratch), 4);
  EXPECT_EQ(plan.critical.us, 20);
  EXPECT_EQ(plan.without_reuse_us, 20);
  EXPECT_EQ(plan.without_workspaces_us, 10);
}

TEST(Plan, TellsWhatBarriersCost) {
  std::vector<Unit> units = held_up(read({32, 40}), read({32, 40}));
  units.insert(units.begin() + 2, barrier("foreign nodes", 3));
  const Plan plan = make_plan(step(std::move(units)), 4);
  EXPECT_EQ(plan.critical.us, 23);
  EXPECT_EQ(plan.without_barriers_us, 10);
}

Unit named(std::string name, std::vector<Access> accesses) {
  Unit made = unit(std::move(accesses));
  made.name = std::move(name);
  return made;
}

TEST(Plan, CountsObstaclesByCauseAndOperatorTheMostFrequentFirst) {
  const Access scratch = write({0, 8}, nullptr, Memory::workspace);
  const Plan plan = make_plan(
      step({named("aten::mm", {scratch}), named("aten::mm", {scratch}), named("aten::mm", {scratch}),
            named("aten::relu", {read({16, 24}, storage(0))}), named("aten::add", {write({16, 24}, storage(1))})}),
      4);
  EXPECT_THAT(plan.obstacles,
              ElementsAre(AllOf(Field(&BranchObstacle::cause, "workspace"), Field(&BranchObstacle::op, "aten::mm"),
                                Field(&BranchObstacle::dependencies, 2)),
                          AllOf(Field(&BranchObstacle::cause, "reuse of memory"),
                                Field(&BranchObstacle::op, "aten::add"), Field(&BranchObstacle::dependencies, 1))));
}

TEST(Plan, CountsNoObstacleWhereAValueHasToBeAwaitedAnyhow) {
  const Access scratch = write({0, 8}, nullptr, Memory::workspace);
  const Plan plan = make_plan(
      step({unit({scratch, write(kBytes)}), unit({read(kBytes), write({8, 16})}), unit({scratch, read({8, 16})})}), 4);
  EXPECT_THAT(plan.obstacles, IsEmpty());
}

TEST(Plan, DescribesItself) {
  Unit two_nodes = unit({write(kBytes)}, 4);
  two_nodes.nodes = {0, 1};
  Unit reader = unit({read(kBytes)}, 2);
  reader.nodes = {2};
  Unit foreign = barrier("foreign nodes", 1);
  foreign.nodes = {3};
  Unit aside = unit({}, 3);
  aside.nodes = {4};
  const Plan plan = make_plan({two_nodes, reader, aside, foreign}, 4);
  BranchInfo info;
  info.edges_before = 4;
  plan.describe(info);
  EXPECT_EQ(info.edges_before, 4);
  EXPECT_EQ(info.nodes, 5);
  EXPECT_EQ(info.units, 4);
  EXPECT_EQ(info.edges_after, 4);  // one within the first unit, and three between units
  EXPECT_EQ(info.lanes, 2);
  EXPECT_EQ(info.critical_nodes, 4);
  EXPECT_EQ(info.modelled_serial_us, 10);
  EXPECT_EQ(info.modelled_critical_us, 7);
  EXPECT_EQ(info.modelled_rebuilt_us, 7);
  EXPECT_EQ(info.without_reuse_us, 7);
  EXPECT_EQ(info.without_workspaces_us, 7);
  EXPECT_EQ(info.without_barriers_us, 6);
  EXPECT_THAT(info.obstacles, SizeIs(1));
}

TEST(Plan, IsAlwaysProvedRight) {
  RandomSteps steps(31);
  for (int round = 0; round < 2000; ++round) {
    const Plan plan = make_plan(steps.next(), 1 + static_cast<int>(steps.draw(kMostLanes)));
    const Proof proof = prove(plan.units, count_nodes(plan.units), plan.edges);
    ASSERT_EQ(proof.failure, "") << to_string(plan.units);
    ASSERT_TRUE(pianola::testing::keeps_meaning(plan.units, plan.edges)) << to_string(plan.units);
  }
}

TEST(Plan, OrdersTheUnitsOfEachLane) {
  RandomSteps steps(32);
  for (int round = 0; round < 500; ++round) {
    const Plan plan = make_plan(steps.next(), 1 + static_cast<int>(steps.draw(kMostLanes)));
    const auto ordered = closure(std::span(plan.dependencies), plan.units.size());
    for (std::size_t one = 0; one < plan.units.size(); ++one) {
      for (std::size_t other = 0; other < one; ++other) {
        if (plan.lanes.lane_of[one] != plan.lanes.lane_of[other]) continue;
        ASSERT_NE(ordered[one][other], ordered[other][one]) << to_string(plan.units);
      }
    }
  }
}

TEST(Plan, NamesTheLengthOfTheLongestPathWithoutEachCause) {
  RandomSteps steps(33);
  for (int round = 0; round < 500; ++round) {
    const Plan plan = make_plan(steps.next(), 4);
    const auto longest_without = [&](Cause cause) {
      return critical_path(plan.units, find_dependencies_without(cause, plan.units)).us;
    };
    ASSERT_EQ(plan.without_reuse_us, longest_without(Cause::reuse)) << to_string(plan.units);
    ASSERT_EQ(plan.without_workspaces_us, longest_without(Cause::workspace)) << to_string(plan.units);
    ASSERT_EQ(plan.without_barriers_us, longest_without(Cause::barrier)) << to_string(plan.units);
  }
}

// A net of 2500 layers: forward, backward, weight gradient and update, with four workspaces and reused activations.
std::vector<Unit> large_step() {
  constexpr std::size_t kLayers = 2500;
  constexpr std::size_t kSize = 4096;
  const auto bytes = [](std::size_t buffer) { return ByteSpan{(buffer + 1) * kSize, (buffer + 2) * kSize}; };
  const auto activation = [&](std::size_t layer) { return bytes(layer); };
  const auto weight = [&](std::size_t layer) { return bytes(kLayers + 1 + layer); };
  const auto gradient = [&](std::size_t layer) { return bytes(2 * kLayers + 1 + layer % 50); };
  const auto weight_gradient = [&](std::size_t layer) { return bytes(2 * kLayers + 51 + layer % 50); };
  const auto scratch = [&](std::size_t op) {
    return write(bytes(2 * kLayers + 101 + op % 4), nullptr, Memory::workspace);
  };
  std::vector<Unit> units;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    units.push_back(
        unit({read(activation(layer)), read(weight(layer)), write(activation(layer + 1)), scratch(layer)}, 2));
  }
  for (std::size_t layer = kLayers; layer-- > 0;) {
    units.push_back(unit({read(gradient(layer + 1)), read(weight(layer)), write(gradient(layer)), scratch(layer)}, 2));
    units.push_back(unit(
        {read(gradient(layer + 1)), read(activation(layer)), write(weight_gradient(layer)), scratch(layer + 1)}, 2));
    units.push_back(unit({read(weight_gradient(layer)), write(weight(layer), nullptr, Memory::outside)}, 1));
  }
  return step(std::move(units));
}

TEST(Plan, TakesTenThousandUnits) {
  const Plan plan = make_plan(large_step(), 4);
  EXPECT_EQ(plan.units.size(), 10000);
  EXPECT_LT(plan.lanes.makespan_us, plan.serial_us);
  const Proof proof = prove(plan.units, plan.units.size(), plan.edges);
  EXPECT_EQ(proof.failure, "");
  EXPECT_GT(proof.pairs, 1'000'000);
}

}  // namespace
}  // namespace pianola::parallel::plan_test
