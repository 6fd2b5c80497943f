// See Note [Tensors of the CPU in a step of another device]. The CPU stands for the host here; the device is "meta", which
// every machine has.
#include <pianola/graph/host_tensors.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/graph/outside_guard.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <functional>

namespace pianola::host_tensors_test {
namespace {

using graph::HostTensors;
using graph::OutsideGuard;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

HostTensors used_by(const std::function<void()>& step) {
  HostTensors used;
  const trace::OpStream watching({&used});
  step();
  return used;
}

bool computes_with(const HostTensors& used, const at::Tensor& tensor) {
  return used.computes_with(*tensor.unsafeGetTensorImpl());
}

TEST(HostTensorsTest, NotesWhatOperationsComputeWith) {
  const at::Tensor scale = at::ones({}), viewed = at::ones({2, 3}), copied = at::ones({2}), made_of = at::ones({2});
  const HostTensors used = used_by([&] {
    (void)(scale * 2);
    (void)viewed.t();
    (void)copied.to(at::kMeta);
    const at::Tensor own = made_of + 1;
    own.mul_(2);
  });
  EXPECT_TRUE(computes_with(used, scale));
  EXPECT_FALSE(computes_with(used, viewed)) << "a view reads nothing";
  EXPECT_FALSE(computes_with(used, copied)) << "a copy is in the graph";
  EXPECT_TRUE(computes_with(used, made_of));
  EXPECT_FALSE(used.obstacle()) << "what the step made itself it may write";
}

TEST(HostTensorsTest, AStepThatWritesOneIsRefusedByItsLine) {
  const at::Tensor count = at::zeros({});
  const HostTensors used = used_by([&] { count.add_(1); });
  ASSERT_TRUE(used.obstacle());
  EXPECT_EQ(used.obstacle()->what, "aten::add_ writes a tensor of the CPU, which a replay would not do");
  EXPECT_THAT(used.obstacle()->where, AllOf(HasSubstr("operation 1 of the step"), HasSubstr("host_tensors_test.cpp")));
  EXPECT_EQ(used.obstacle()->rule, "PG201");
}

TEST(HostTensorsTest, AStepThatComputesWithMuchIsRefused) {
  const at::Tensor table = at::zeros({static_cast<std::int64_t>(HostTensors::kMostBytes)});
  const HostTensors used = used_by([&] { (void)table.sum(); });
  ASSERT_TRUE(used.obstacle());
  EXPECT_EQ(
      used.obstacle()->what,
      "the step computes with 262144 bytes of tensors of the CPU, too many to compare before each replay (at most "
      "65536); aten::sum does so first");
}

TEST(HostTensorsTest, AGuardComparesTheirValues) {
  const at::Tensor scale = at::full({2}, 0.5), row = at::ones({4, 4}).select(1, 1);
  const HostTensors used = used_by([&] { (void)(scale.sum() * row); });
  OutsideGuard guard({scale, row});
  guard.watch_values(used);
  EXPECT_TRUE(guard.intact());
  scale[1].fill_(0.25);
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(guard.difference(), "a Float tensor of shape [2] that the function reads was written, and lies on the CPU");
  EXPECT_EQ(guard.offence().what,
            "a Float tensor of shape [2] lies on the CPU, and was written since the capture; nothing was launched");
  EXPECT_EQ(guard.offence().rule, "PG203");
  scale.fill_(0.5);
  EXPECT_TRUE(guard.intact());
  row[3].fill_(7);
  EXPECT_FALSE(guard.intact());
}

class HostTensorsOnDeviceTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(HostTensorsOnDeviceTest);

TEST_P(HostTensorsOnDeviceTest, AStrictReplayNeverUsesAnOldNumberOfTheCpu) {
  const at::Tensor x = randn({4}), scale = at::full({}, 2.0);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x * scale; }, {.check = CheckMode::strict, .names = {{"scale", scale}}});
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
  scale.fill_(3);
  if (device().is_cpu()) {
    graph.replay();
    EXPECT_TRUE(same(y, x * 3));
  } else {
    EXPECT_THAT(refusal<ReplayError>("a number on the CPU that was written", [&] { graph.replay(); }),
                AllOf(HasSubstr("'scale', a Float tensor of shape [], lies on the CPU, and was written since"),
                      HasSubstr("[PG203]")));
  }
}

TEST_P(HostTensorsOnDeviceTest, AStrictCaptureOfAStepThatCountsOnTheCpuIsRefused) {
  const at::Tensor x = randn({4}), count = at::zeros({});
  at::Tensor y;
  Graph graph(device());
  const auto capture = [&] {
    graph.capture(
        [&] {
          count.add_(1);
          y = x * 2;
        },
        {.check = CheckMode::strict});
  };
  if (device().is_cpu()) return capture();
  EXPECT_THAT(refusal<CaptureError>("a step that counts on the CPU", capture),
              AllOf(HasSubstr("aten::add_ writes a tensor of the CPU"), HasSubstr("[PG201]")));
}

}  // namespace
}  // namespace pianola::host_tensors_test
