#include <pianola/graph/branch_plan.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pianola::graph::branch_plan_test {
namespace {

using parallel::Memory;
using parallel::StepUnits;
using parallel::Unit;
using ::testing::HasSubstr;

Unit unit(std::uint32_t node, ByteSpan bytes, bool communicates = false) {
  return {.name = communicates ? "c10d::allreduce_" : "aten::relu_",
          .nodes = {node},
          .accesses = {{.bytes = bytes, .write = true, .memory = Memory::outside}},
          .communicates = communicates,
          .cost_us = 10};
}

// Layers, of which the first one's gradient is reduced meanwhile, and used at the end.
StepUnits step(std::vector<parallel::NodeEdge> captured) {
  return {.units = {unit(0, {0, 8}), unit(1, {0, 8}, true), unit(2, {8, 16}), unit(3, {16, 24}), unit(4, {0, 8})},
          .refusal = "",
          .captured = std::move(captured)};
}

BranchInfo info_for(int branches) {
  CaptureOptions options;
  options.branches = branches;
  return requested_branches(options);
}

TEST(BranchPlan, TakesAStepThatWaitsForItsCollectives) {
  BranchInfo info = info_for(4);
  const auto plan = plan_branches(step({{0, 1}, {0, 2}, {2, 3}, {3, 4}, {1, 4}}), info);
  EXPECT_EQ(info.reason, "");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->serial_us, 40) << "what communicates runs beside the rest";
  EXPECT_LT(plan->lanes.makespan_us, plan->serial_us);
}

TEST(BranchPlan, RefusesOneThatDoesNot) {
  BranchInfo info = info_for(4);
  EXPECT_FALSE(plan_branches(step({{0, 1}, {0, 2}, {2, 3}, {3, 4}}), info));
  EXPECT_THAT(info.reason, HasSubstr("the capture does not order a collective and what it has to be in order with: "
                                     "c10d::allreduce_ (unit 1) and aten::relu_ (unit 4) both touch 8 bytes"));
}

}  // namespace
}  // namespace pianola::graph::branch_plan_test
