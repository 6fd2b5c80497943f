#include <pianola/parallel/op_split.hpp>

#include <pianola/parallel/testing/graph_units_test.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel::op_split_test {
namespace {

using testing::address_of;
using ::testing::ElementsAre;
using ::testing::SizeIs;
using Call = testing::FakeStep::Call;

class SplitUnits : public testing::GraphUnitsTest {
 protected:
  SplitUnits() {
    for (int i = 0; i < 4; ++i) targets.push_back(at::ones({8})), sources.push_back(at::ones({8}));
  }
  /// A kernel for tensors [first, last) of the lists, as torch's fused optimizers launch them.
  void kernel_for(std::size_t first, std::size_t last, std::vector<std::uintptr_t> extra = {}) {
    for (std::size_t i = first; i < last; ++i) {
      extra.push_back(address_of(targets[i]));
      extra.push_back(address_of(sources[i]));
    }
    step.kernel(std::move(extra));
  }
  std::vector<Unit> units_of_foreach(testing::FakeStep::Action action) {
    step.on("aten::_foreach_add_.List", std::move(action));
    return units([&] {
      at::relu(x);
      at::_foreach_add_(targets, sources);
    });
  }

  void SetUp() override {
    step.on("aten::relu", [&](const Call& call) {
      step.allocate(testing::bytes_of(call.outputs[0]));
      step.kernel({});
    });
  }

  std::vector<at::Tensor> targets, sources;
};

TEST_F(SplitUnits, AreTheKernelsOfAnOperationOnLists) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 2);
    kernel_for(2, 4);
  });
  ASSERT_THAT(names(all), ElementsAre("aten::relu", "aten::_foreach_add_.List", "aten::_foreach_add_.List"));
  EXPECT_EQ(all[1].op, all[2].op);
  EXPECT_THAT(all[1].nodes, ElementsAre(1U));
  EXPECT_THAT(all[2].nodes, ElementsAre(2U));
  EXPECT_THAT(all[1].accesses, SizeIs(4));
  EXPECT_THAT(all[2].accesses, SizeIs(4));
  EXPECT_EQ(use(all[1], targets[0]) + use(all[1], sources[1]), "wr");
  EXPECT_EQ(use(all[1], targets[2]), "");
  EXPECT_EQ(use(all[2], targets[3]) + use(all[2], sources[2]), "wr");
}

TEST_F(SplitUnits, ShareATensorThatTwoKernelsWorkOn) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 3);
    kernel_for(2, 4);
  });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(use(all[1], targets[2]) + use(all[2], targets[2]), "ww") << "which orders them";
}

TEST_F(SplitUnits, TakeAddressesInsideAView) {
  const at::Tensor flat = at::ones({32});
  targets = flat.view({4, 8}).unbind();
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 2);
    for (std::size_t i = 2; i < 4; ++i) step.kernel({address_of(targets[i]) + 16, address_of(sources[i])});
  });
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_EQ(use(all[2], targets[2]), "w");
  EXPECT_EQ(use(all[2], targets[1]) + use(all[2], targets[3]), "");
}

TEST_F(SplitUnits, OrderThemselvesByScratch) {
  const ByteSpan scratch{0x7000, 0x7100};
  const auto all = units_of_foreach([&](const Call&) {
    step.allocate(scratch);
    kernel_for(0, 4, {scratch.begin});
    kernel_for(0, 4, {scratch.begin + 64});
  });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(use(all[1], scratch) + use(all[2], scratch), "ww");
}

TEST_F(SplitUnits, AreFillsAndCopiesToo) {
  const auto all = units_of_foreach([&](const Call&) {
    step.copy(testing::bytes_of(sources[0]), address_of(targets[0]));
    step.fill(testing::bytes_of(targets[1]));
    kernel_for(1, 4);
  });
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_EQ(use(all[1], sources[0]) + use(all[1], targets[0]), "rw");
  EXPECT_THAT(all[2].accesses, SizeIs(1));
}

TEST_F(SplitUnits, AreWholeWhereATensorIsFoundInNoKernel) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 2);
    kernel_for(2, 3);
  });
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_THAT(all[1].nodes, ElementsAre(1U, 2U));
  EXPECT_THAT(all[1].accesses, SizeIs(8));
  EXPECT_EQ(all[1].barrier, "");
}

TEST_F(SplitUnits, AllReadWhatIsFoundInNoKernel) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 2);
    step.kernel({address_of(targets[2]), address_of(targets[3]), address_of(sources[2])});
  });
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(use(all[1], sources[3]) + use(all[2], sources[3]), "rr");
  EXPECT_EQ(use(all[1], sources[2]) + use(all[2], sources[2]), "r");
}

TEST_F(SplitUnits, AreWholeWhereScratchIsFoundInNoKernel) {
  const auto all = units_of_foreach([&](const Call&) {
    step.allocate({0x7000, 0x7100});
    kernel_for(0, 2);
    kernel_for(2, 4);
  });
  EXPECT_THAT(all, SizeIs(2));
}

TEST_F(SplitUnits, AreWholeWhereAKernelPointsIntoNoTensor) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 4);
    step.kernel({});
  });
  EXPECT_THAT(all, SizeIs(2));
}

TEST_F(SplitUnits, AreWholeWhereAKernelCannotBeRead) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 4);
    step.unreadable_kernel();
  });
  EXPECT_THAT(all, SizeIs(2));
}

TEST_F(SplitUnits, AreWholeWhereOneSideOfACopyCannotBeRead) {
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 4);
    step.copy({0, 32}, address_of(targets[0]));
  });
  EXPECT_THAT(all, SizeIs(2));
}

TEST_F(SplitUnits, AreWholeWhereNoBlocksWereRecorded) {
  step.on("aten::relu", [&](const Call&) { step.kernel({}); });
  const auto all = units_of_foreach([&](const Call&) {
    kernel_for(0, 2);
    kernel_for(2, 4);
  });
  EXPECT_THAT(all, SizeIs(2)) << "they may share scratch that nobody knows of";
}

TEST_F(SplitUnits, AreOtherOperationsOnlyWhereAsked) {
  const auto two_kernels = [&](const Call& call) {
    step.allocate(testing::bytes_of(call.outputs[0]));
    step.kernel({address_of(x), address_of(call.outputs[0])});
    step.kernel({address_of(y), address_of(call.outputs[0])});
  };
  EXPECT_THAT(unit_of_mm(two_kernels).nodes, SizeIs(2));
  step.graph.nodes.clear();
  split_kernels = true;
  step.on("aten::mm", two_kernels);
  at::Tensor made;
  const auto all = units([&] { made = at::mm(x, y); });
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(use(all[0], x) + use(all[0], y) + use(all[0], made), "rw");
  EXPECT_EQ(use(all[1], x) + use(all[1], y) + use(all[1], made), "rw");
}

TEST_F(SplitUnits, KeepWorkspacesAndGenerators) {
  hidden.workspaces = {{0x100000, 0x200000}};
  hidden.generators = {{0x500000, 0x500008}};
  split_kernels = true;
  step.on("aten::bernoulli", [&](const Call& call) {
    step.allocate(testing::bytes_of(call.outputs[0]));
    step.kernel({address_of(x), 0x100000});
    step.kernel({address_of(call.outputs[0])});
  });
  const auto all = units([&] { at::bernoulli(x); });
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(use(all[0], hidden.workspaces[0]) + use(all[1], hidden.workspaces[0]), "w");
  EXPECT_EQ(use(all[0], hidden.generators[0]) + use(all[1], hidden.generators[0]), "rr");
}

}  // namespace
}  // namespace pianola::parallel::op_split_test
