#include <pianola/parallel/plan.hpp>
#include <pianola/parallel/proof.hpp>
#include <pianola/parallel/step_units.hpp>
#include <pianola/parallel/testing/graph_units_test.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel::collective_units_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Call = testing::FakeStep::Call;

class Done final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
};

// Reduces nothing.
class NoBackend final : public c10d::Backend {
 public:
  NoBackend() : Backend(0, 2) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<Done>();
  }
};

c10::intrusive_ptr<c10d::ProcessGroup> make_group() {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<NoBackend>());
  return group;
}

/// A step with collectives, as NCCL captures them: each on a stream of its communicator, between two events.
class CollectiveUnits : public testing::GraphUnitsTest {
 protected:
  CollectiveUnits() {
    step.on("c10d::allreduce_", [&](const Call&) {
      step.on_another_stream = true;
      capture_collective();
      step.on_another_stream = false;
    });
  }

  void all_reduce(at::Tensor& tensor, const c10::intrusive_ptr<c10d::ProcessGroup>& by) {
    group = by.get();
    std::vector<at::Tensor> tensors = {tensor};
    by->allreduce(tensors);
  }

  // The stream of the step goes on where it was; a wait is an edge of the next node.
  void capture_collective() {
    std::vector<FakeDriver::Edge> before;
    if (last_of_step != nullptr) before.push_back({.from = last_of_step});
    if (const auto earlier = last_of_group.find(group); earlier != last_of_group.end()) {
      before.push_back({.from = earlier->second});
    } else {
      before.push_back({.from = add({.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT}, {})});
    }
    last_kernel = step.kernel({}, "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
    step.graph.nodes.back().dependencies = before;
    last_of_group[group] = add({.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD}, {{.from = last_kernel}});
  }

  CUgraphNode add(FakeDriver::Node node, std::vector<FakeDriver::Edge> before) {
    const CUgraphNode handle = step.add(std::move(node));
    step.graph.nodes.back().dependencies = std::move(before);
    return handle;
  }

  // What the step computes next, behind its own last node and that of a collective it waits for.
  void compute(const std::function<void()>& body, CUgraphNode waits_for = nullptr) {
    const std::size_t first = step.graph.nodes.size();
    body();
    auto& before = step.graph.nodes.at(first).dependencies;
    before.clear();
    if (last_of_step != nullptr) before.push_back({.from = last_of_step});
    if (waits_for != nullptr) before.push_back({.from = waits_for});
    last_of_step = step.last();
  }

  static std::string failure_of(const std::vector<Unit>& units, const std::vector<NodeEdge>& edges) {
    std::size_t nodes = 0;
    for (const Unit& unit : units) nodes += unit.nodes.size();
    return prove(units, nodes, edges).failure;
  }

  static bool is_ordered(const Plan& plan, const std::string& first, const std::string& second) {
    return std::ranges::any_of(plan.dependencies, [&](const Dependency& found) {
      return plan.units[found.from].name == first && plan.units[found.to].name == second;
    });
  }

  c10::intrusive_ptr<c10d::ProcessGroup> one = make_group(), other = make_group();
  const c10d::ProcessGroup* group = nullptr;
  CUgraphNode last_of_step = nullptr, last_kernel = nullptr;
  std::map<const c10d::ProcessGroup*, CUgraphNode> last_of_group;
  at::Tensor z = at::ones({4, 4});
};

TEST_F(CollectiveUnits, HaveTheirKernelAndItsEvents) {
  const auto all = units([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    compute([&] { at::mm(y, y); });
    compute([&] { at::relu_(x); }, last_kernel);
  });
  ASSERT_THAT(names(all), ElementsAre("aten::relu_", "c10d::allreduce_", "aten::mm", "aten::relu_"));
  EXPECT_THAT(all[1].nodes, ElementsAre(1U, 2U, 3U));
  EXPECT_TRUE(all[1].communicates);
  EXPECT_EQ(all[1].barrier, "");
  EXPECT_EQ(use(all[1], x), "w");
  EXPECT_FALSE(all[2].communicates);
}

TEST_F(CollectiveUnits, LetPassOnlyWhatHasNothingToDoWithThem) {
  StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    compute([&] { at::mm(y, y); });
    compute([&] { at::relu_(x); }, last_kernel);
  });
  ASSERT_EQ(found.refusal, "");
  EXPECT_EQ(failure_of(found.units, found.captured), "");
  const Plan plan = make_plan(std::move(found.units), 4);
  EXPECT_EQ(failure_of(plan.units, plan.edges), "");
  EXPECT_TRUE(is_ordered(plan, "aten::relu_", "c10d::allreduce_"));
  EXPECT_TRUE(is_ordered(plan, "c10d::allreduce_", "aten::relu_"));
  EXPECT_FALSE(is_ordered(plan, "c10d::allreduce_", "aten::mm"));
  EXPECT_NE(plan.lanes.lane_of[1], plan.lanes.lane_of[2]);
}

TEST_F(CollectiveUnits, OfTwoCommunicatorsSideBySideCannotBeProved) {
  const StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    all_reduce(y, other);
  });
  ASSERT_EQ(found.refusal, "");
  EXPECT_THAT(failure_of(found.units, found.captured),
              HasSubstr("c10d::allreduce_ (unit 1) and c10d::allreduce_ (unit 2) both touch"));
}

TEST_F(CollectiveUnits, OfTwoCommunicatorsKeepTheirOrder) {
  StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    compute([&] { at::relu_(x); }, last_kernel);
    all_reduce(y, other);
  });
  ASSERT_EQ(found.refusal, "");
  EXPECT_EQ(failure_of(found.units, found.captured), "");
  const Plan plan = make_plan(std::move(found.units), 4);
  EXPECT_EQ(failure_of(plan.units, plan.edges), "");
  EXPECT_EQ(plan.lanes.lane_of[1], plan.lanes.lane_of[3]);
  EXPECT_LT(plan.lanes.start_us[1], plan.lanes.start_us[3]);
}

TEST_F(CollectiveUnits, MayBeTheStepsOwnStream) {
  // Without async_op NCCL takes the stream of the step: what comes behind waits for the collective alone.
  const StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    last_of_step = nullptr;
    compute([&] { at::relu_(x); }, last_kernel);
  });
  EXPECT_THAT(names(found.units), ElementsAre("aten::relu_", "c10d::allreduce_", "aten::relu_"));
  EXPECT_EQ(failure_of(found.units, found.captured), "");
}

TEST_F(CollectiveUnits, ThatTheStepDoesNotWaitForCannotBeProved) {
  const StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    compute([&] { at::relu_(x); });
  });
  ASSERT_EQ(found.refusal, "");
  EXPECT_THAT(failure_of(found.units, found.captured),
              HasSubstr("c10d::allreduce_ (unit 1) and aten::relu_ (unit 2) both touch 64 bytes"));
}

TEST_F(CollectiveUnits, DoNotExcuseStreamsOfTheStepsOwn) {
  EXPECT_THAT(refusal([&] {
                compute([&] { at::relu_(x); });
                all_reduce(x, one);
                compute([&] { at::relu_(y); });
                last_of_step = nullptr;
                compute([&] { at::relu_(z); });
              }),
              HasSubstr("it was captured on several streams: kernel a_kernel of aten::relu_"));
}

TEST_F(CollectiveUnits, DoNotTakeWhatTheUserLeftOnTheirStream) {
  // torch.cat on the stream of the process group, between two of its collectives: nobody's, so that it may touch anything.
  const StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    step.on_another_stream = true;
    at::mm(z, z);
    step.on_another_stream = false;
    last_of_group[one.get()] = step.last();
    all_reduce(y, one);
  });
  ASSERT_EQ(found.refusal, "");
  ASSERT_THAT(names(found.units),
              ElementsAre("aten::relu_", "c10d::allreduce_", "nodes outside any operation", "c10d::allreduce_"));
  EXPECT_THAT(found.units[2].barrier, HasSubstr("may touch anything"));
  EXPECT_THAT(found.units[3].nodes, ::testing::SizeIs(2));
}

TEST_F(CollectiveUnits, WhoseWorkComesLaterAreRefused) {
  // Calls between the begin and the end of a group: their kernel comes with the end, which is no operation.
  step.on("c10d::allreduce_", [](const Call&) {});
  EXPECT_THAT(refusal([&] {
                compute([&] { at::relu_(x); });
                all_reduce(x, one);
              }),
              HasSubstr("c10d::allreduce_ adds nothing to the graph where it is called"));
}

TEST_F(CollectiveUnits, WhoseEventsOthersWaitForAreNotTakenForTheirKernels) {
  const StepUnits found = run([&] {
    compute([&] { at::relu_(x); });
    all_reduce(x, one);
    compute([&] { at::mm(y, y); }, reinterpret_cast<CUgraphNode>(&step.graph.nodes[1]));  // its first event
    compute([&] { at::relu_(x); }, last_kernel);
  });
  ASSERT_EQ(found.refusal, "");
  EXPECT_THAT(found.captured, ::testing::Not(::testing::Contains(NodeEdge{0, 1})));
}

TEST_F(CollectiveUnits, OfOtherLibrariesAreRefused) {
  EXPECT_THAT(refusal_of_mm([&](const Call&) { step.kernel({}, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"); }),
              HasSubstr("of aten::mm communicates with other GPUs"));
}

}  // namespace
}  // namespace pianola::parallel::collective_units_test
