#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>

#include <string>

namespace pianola::check_mode_test {
namespace {

using ::testing::AllOf;
using testing::expect_replays_equal_eager;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::Training;

// Replays that look first whether what they use from outside is still there.
class CheckModeTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    for (at::Tensor* tensor : {&weight, &cache, &x}) *tensor = randn({4, 4});
  }

  at::Tensor weight, cache, x, y;

  void capture_sum(Graph& graph, CheckMode check) {
    graph.capture([&] { y = x.mm(weight) + cache; },
                  {.check = check, .names = {{"weight", weight}, {"cache", cache}, {"x", x}}});
  }
};
PIANOLA_ON_EVERY_DEVICE(CheckModeTest);

TEST_P(CheckModeTest, StrictReplaysOfAStepThatChangesNothingElseEqualEager) {
  Training graphed(device());
  Graph graph(device());
  graph.capture([&] { graphed.step(); }, {.check = CheckMode::strict});
  expect_replays_equal_eager(graph, graphed);
}

TEST_P(CheckModeTest, StrictNamesATensorThatWasReplaced) {
  Graph graph(device());
  capture_sum(graph, CheckMode::strict);
  graph.replay();
  cache = at::cat({cache, cache}).narrow(0, 0, 4).contiguous();
  const at::Tensor before = y.clone();
  EXPECT_THAT(refusal<ReplayError>("a cache that was replaced", [&] { graph.replay(); }),
              AllOf(HasSubstr("the graph uses 'cache', a Float tensor of shape [4, 4], but nobody holds it"),
                    HasSubstr("[PG404]"), HasSubstr("nothing was launched"), HasSubstr("copy_()")));
  EXPECT_TRUE(same(y, before)) << "nothing was launched";
}

TEST_P(CheckModeTest, StrictNamesATensorWhoseMemoryWasReplaced) {
  Graph graph(device());
  capture_sum(graph, CheckMode::strict);
  const at::Tensor old = weight.alias();  // keeps the memory alive
  weight.set_data(randn({4, 4}));
  EXPECT_THAT(
      refusal<ReplayError>("a weight whose data was replaced", [&] { graph.replay(); }),
      AllOf(HasSubstr("'weight', a Float tensor of shape [4, 4]: its memory was replaced"), HasSubstr("[PG401]")));
}

TEST_P(CheckModeTest, StrictTellsAParameterFromOtherTensors) {
  weight.requires_grad_();
  Graph graph(device());
  capture_sum(graph, CheckMode::strict);
  weight.set_data(randn({4, 4}));
  EXPECT_THAT(refusal<ReplayError>("a parameter whose data was replaced", [&] { graph.replay(); }),
              HasSubstr("[PG402]"));
}

TEST_P(CheckModeTest, StrictNamesADroppedGradient) {
  weight.requires_grad_();
  Graph graph(device());
  graph.capture([&] { at::mse_loss(x.mm(weight), cache).backward(); },
                {.check = CheckMode::strict, .names = {{"weight", weight}}});
  ASSERT_TRUE(weight.grad().defined());
  graph.replay();
  weight.grad().zero_();
  graph.replay();
  weight.mutable_grad() = at::Tensor();
  EXPECT_THAT(refusal<ReplayError>("a gradient that was set to None", [&] { graph.replay(); }),
              AllOf(HasSubstr("the gradient of 'weight', a Float tensor of shape [4, 4],"), HasSubstr("[PG403]")));
}

TEST_P(CheckModeTest, StrictDoesNotMindTensorsOfTheStepItself) {
  Graph graph(device());
  graph.capture([&] { y = x.mm(weight.t()).narrow(0, 0, 2) * 2 + cache.narrow(0, 0, 2); },
                {.check = CheckMode::strict});
  const at::Tensor expected = x.mm(weight.t()).narrow(0, 0, 2) * 2 + cache.narrow(0, 0, 2);
  graph.replay();
  EXPECT_TRUE(same(y, expected));
  y = at::Tensor();  // a result is no tensor from outside
  graph.replay();
}

TEST_P(CheckModeTest, StandardReplaysReadTheOldMemory) {
  Graph graph(device());
  capture_sum(graph, CheckMode::standard);
  graph.replay();
  const at::Tensor first = y.clone();
  cache = randn({4, 4});
  graph.replay();
  EXPECT_TRUE(same(y, first));
}

TEST_P(CheckModeTest, StrictNeedsTheTrace) {
  Graph graph(device());
  EXPECT_THAT(
      refusal<UsageError>("strict without the trace",
                          [&] { graph.capture([&] { y = x * 2; }, {.check = CheckMode::strict, .trace = false}); }),
      AllOf(HasSubstr("check = strict needs the trace"), HasSubstr("fix:")));
  EXPECT_FALSE(graph.captured());
}

}  // namespace
}  // namespace pianola::check_mode_test
