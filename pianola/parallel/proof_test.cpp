#include <pianola/parallel/proof.hpp>

#include <pianola/parallel/testing/reference.hpp>
#include <pianola/parallel/testing/steps.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace pianola::parallel::proof_test {
namespace {

using pianola::testing::barrier;
using pianola::testing::count_nodes;
using pianola::testing::Matrix;
using pianola::testing::RandomSteps;
using pianola::testing::read;
using pianola::testing::step;
using pianola::testing::to_string;
using pianola::testing::unit;
using pianola::testing::write;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Edges = std::vector<NodeEdge>;

constexpr ByteSpan kBytes{0x1000, 0x2000};

std::vector<Unit> write_then_read() {
  std::vector<Unit> units = step({unit({write(kBytes)}), unit({read({0x1800, 0x3000})})});
  units[0].name = "aten::mm";
  units[1].name = "aten::add_";
  return units;
}

std::vector<Unit> one_of_three_nodes() {
  Unit only = unit({});
  only.nodes = {0, 1, 2};
  return {only};
}

std::string failure(const std::vector<Unit>& units, const Edges& edges) {
  return prove(units, count_nodes(units), edges).failure;
}

TEST(Proof, HoldsOfNothing) {
  EXPECT_TRUE(prove({}, 0, {}).holds());
  EXPECT_EQ(prove({}, 0, {}).pairs, 0);
}

TEST(Proof, HoldsOfUnitsThatShareNoBytes) {
  const std::vector<Unit> units =
      step({unit({write(kBytes)}), unit({write({0x2000, 0x3000}), read({0, 8})}), unit({read({0, 8})})});
  EXPECT_TRUE(prove(units, 3, {}).holds());
  EXPECT_EQ(prove(units, 3, {}).pairs, 0);
}

TEST(Proof, TakesAnyPathForAnOrder) {
  const std::vector<Unit> units = step({unit({write(kBytes)}), unit({}), unit({read(kBytes)})});
  const Proof proof = prove(units, 3, Edges{{0, 1}, {1, 2}});
  EXPECT_EQ(proof.failure, "");
  EXPECT_EQ(proof.pairs, 1);
}

TEST(Proof, NamesBothUnitsAndTheirBytes) {
  EXPECT_EQ(failure(write_then_read(), {}),
            "aten::mm (unit 0) and aten::add_ (unit 1) both touch 2048 bytes at 0x1800, and nothing orders them");
}

TEST(Proof, TellsAWrongOrderFromNone) {
  EXPECT_EQ(
      failure(write_then_read(), {{1, 0}}),
      "aten::mm (unit 0) and aten::add_ (unit 1) both touch 2048 bytes at 0x1800, but aten::add_ (unit 1) runs first");
}

TEST(Proof, NamesTheFirstPairOfSeveral) {
  const std::vector<Unit> units =
      step({unit({read({0, 8})}), unit({write({100, 108})}), unit({read({100, 108})}), unit({write({0, 8})})});
  EXPECT_THAT(failure(units, {}), HasSubstr("op (unit 1) and op (unit 2)"));
}

TEST(Proof, NamesTheBarrier) {
  const std::vector<Unit> units = step({unit({}), barrier("host copy"), unit({})});
  EXPECT_EQ(failure(units, {{1, 2}}),
            "foreign (unit 1) is a barrier (host copy) to op (unit 0), and nothing orders them");
  EXPECT_EQ(failure(units, {{0, 1}}),
            "foreign (unit 1) is a barrier (host copy) to op (unit 2), and nothing orders them");
  EXPECT_EQ(failure(units, {{0, 1}, {1, 2}}), "");
}

TEST(Proof, OrdersUnitsAcrossABarrierByItself) {
  const std::vector<Unit> units = step({unit({}), barrier("one"), unit({}), barrier("two"), unit({})});
  const Proof proof = prove(units, 5, Edges{{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  EXPECT_EQ(proof.failure, "");
  EXPECT_EQ(proof.pairs, 7);
}

TEST(Proof, AsksForTheWholeEarlierUnitBeforeTheWholeLaterOne) {
  std::vector<Unit> units = {unit({write(kBytes)}), unit({read(kBytes)})};
  units[0].nodes = {0, 1};
  units[1].nodes = {2, 3};
  EXPECT_EQ(failure(units, {{0, 1}, {2, 3}, {1, 2}}), "");
  EXPECT_THAT(failure(units, {{0, 1}, {2, 3}, {0, 2}}), HasSubstr("nothing orders them"));
  EXPECT_THAT(failure(units, {{0, 1}, {2, 3}, {1, 3}}), HasSubstr("nothing orders them"));
}

TEST(Proof, FindsABrokenChain) {
  EXPECT_EQ(failure(one_of_three_nodes(), {{0, 1}, {0, 2}}), "nothing orders node 2 of op (unit 0) behind its node 1");
  EXPECT_EQ(failure(one_of_three_nodes(), {{0, 1}, {1, 2}}), "");
}

TEST(Proof, FindsACycle) {
  EXPECT_THAT(failure(one_of_three_nodes(), {{0, 1}, {1, 2}, {2, 1}}),
              AnyOf("node 1 of op (unit 0) runs behind itself", "node 2 of op (unit 0) runs behind itself"));
  EXPECT_EQ(failure(step({unit({}), unit({})}), {{1, 1}}), "node 1 of op (unit 1) runs behind itself");
}

TEST(Proof, NamesANodeOnTheCycleAndNotOneBehindIt) {
  const std::vector<Unit> units = step({unit({}), unit({}), unit({}), unit({})});
  EXPECT_THAT(failure(units, {{2, 3}, {3, 2}, {3, 0}, {0, 1}}), AnyOf(HasSubstr("node 2 of"), HasSubstr("node 3 of")));
}

TEST(Proof, FindsNodesThatAreMissingOrTwice) {
  std::vector<Unit> units = write_then_read();
  EXPECT_EQ(prove(units, 3, Edges{{0, 1}}).failure, "node 2 is in no unit");
  EXPECT_EQ(prove(units, 1, Edges{}).failure, "aten::add_ (unit 1) has node 1, but the graph has 1 nodes");
  units[1].nodes = {0};
  EXPECT_EQ(prove(units, 2, Edges{{0, 1}}).failure, "aten::mm (unit 0) and aten::add_ (unit 1) both have node 0");
  units[1].nodes = {1, 1};
  EXPECT_EQ(prove(units, 2, Edges{{0, 1}}).failure, "aten::add_ (unit 1) has node 1 twice");
  units[1].nodes = {};
  EXPECT_EQ(prove(units, 1, Edges{}).failure, "aten::add_ (unit 1) has no nodes");
}

TEST(Proof, FindsEdgesOfNodesThatAreNotThere) {
  EXPECT_EQ(prove(write_then_read(), 2, Edges{{0, 1}, {1, 2}}).failure,
            "an edge leads from node 1 to node 2, but the graph has 2 nodes");
  EXPECT_EQ(prove({}, 0, Edges{{0, 0}}).failure, "an edge leads from node 0 to node 0, but the graph has 0 nodes");
}

TEST(Proof, CountsEachPairOnceHoweverManyBytesItShares) {
  const std::vector<Access> many = {write({0, 8}), write({4, 12}), read({0, 20}), write({16, 24})};
  Unit foreign = barrier("foreign nodes");
  foreign.accesses = many;
  EXPECT_EQ(prove(step({unit(many), unit(many), foreign}), 3, Edges{{0, 1}, {1, 2}}).pairs, 3);
}

std::size_t count_pairs(const Matrix& matrix) {
  std::size_t pairs = 0;
  for (const std::vector<bool>& row : matrix)
    pairs += static_cast<std::size_t>(std::count(row.begin(), row.end(), true));
  return pairs;
}

TEST(Proof, CountsThePairsThatConflict) {
  RandomSteps steps(41);
  for (int round = 0; round < 1000; ++round) {
    const Plan plan = make_plan(steps.next(), 4);
    const Proof proof = prove(plan.units, count_nodes(plan.units), plan.edges);
    ASSERT_EQ(proof.pairs, count_pairs(pianola::testing::conflicts(plan.units))) << to_string(plan.units);
  }
}

TEST(Proof, FailsWhereAnEdgeThatMattersIsMissingAndOnlyThere) {
  RandomSteps steps(42);
  int harmful = 0;
  int harmless = 0;
  while (harmful < 1000) {
    const Plan plan = make_plan(steps.next(), 1 + static_cast<int>(steps.draw(kMostLanes)));
    if (plan.edges.empty()) continue;
    Edges edges = plan.edges;
    edges.erase(edges.begin() + static_cast<std::ptrdiff_t>(steps.draw(edges.size())));
    const bool matters = !pianola::testing::keeps_meaning(plan.units, edges);
    ASSERT_EQ(failure(plan.units, edges).empty(), !matters) << to_string(plan.units);
    ++(matters ? harmful : harmless);
  }
  EXPECT_GT(harmless, 20);  // edges of lanes
}

TEST(Proof, AgreesWithTheRulesOnAnyGraph) {
  RandomSteps steps(43);
  int held = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<Unit> units = steps.next();
    const std::size_t nodes = count_nodes(units);
    Edges edges = round % 3 == 0 ? Edges() : make_plan(units, 2).edges;
    for (std::size_t more = steps.draw(4); more > 0; --more) {  // some of them close a cycle
      edges.push_back({static_cast<std::uint32_t>(steps.draw(nodes)), static_cast<std::uint32_t>(steps.draw(nodes))});
    }
    const Matrix reaches = pianola::testing::closure(std::span<const NodeEdge>(edges), nodes);
    bool cycle = false;
    for (std::size_t node = 0; node < nodes; ++node) cycle = cycle || reaches[node][node];
    const bool expected = !cycle && pianola::testing::keeps_meaning(units, edges);
    ASSERT_EQ(failure(units, edges).empty(), expected) << to_string(units);
    held += expected ? 1 : 0;
  }
  EXPECT_GT(held, 100);
}

}  // namespace
}  // namespace pianola::parallel::proof_test
