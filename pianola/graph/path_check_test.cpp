#include <pianola/graph/path_check.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAGraphsUtils.cuh>
#endif

#include <functional>
#include <optional>
#include <string>

namespace pianola::path_check_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using testing::same;
using testing::Training;

// Steps that do otherwise under capture than in the warm-up.
class PathCheckTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    x = randn({4, 4});
    before = x.clone();
  }

  /// `usual` in the first `calls` runs, `other` then.
  std::function<void()> changing(int calls, std::function<void()> usual, std::function<void()> other) {
    runs = 0;
    return [=, this] { runs++ < calls ? usual() : other(); };
  }
  std::string refusal_of(const char* title, const std::function<void()>& step, const CaptureOptions& options) {
    std::string message = refusal<CaptureError>(title, [&] { graph().capture(step, options); });
    EXPECT_FALSE(graph().captured());
    EXPECT_TRUE(same(x, before)) << "what warm-up and recording wrote is put back";
    return message;
  }
  Graph& graph() { return graph_ ? *graph_ : graph_.emplace(device()); }

  at::Tensor x, before;
  int runs = 0;

 private:
  std::optional<Graph> graph_;
};
PIANOLA_ON_EVERY_DEVICE(PathCheckTest);

TEST_P(PathCheckTest, ARecordingThatTakesAnotherPathIsRefusedByBothLines) {
  for (const int warmup : {2, 3}) {
    const auto step = changing(
        warmup, [&] { x.mul_(2); }, [&] { x.add_(x); });
    const std::string message = refusal_of("a recording that takes another path", step, {.warmup = warmup});
    EXPECT_THAT(message, AllOf(HasSubstr("the operations in the last call differ from those under capture"),
                               HasSubstr("operation 1 was aten::mul_.Scalar ("), HasSubstr("and aten::add_.Tensor ("),
                               HasSubstr("accept_capture_path"), HasSubstr("[PG501]")));
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = message.find("path_check_test.cpp:", at)) != std::string::npos; ++at) ++lines;
    EXPECT_EQ(lines, 2U) << message;
  }
}

TEST_P(PathCheckTest, ARecordingThatDoesLessOrMoreIsRefused) {
  const auto one = [&] { x.mul_(2); };
  const auto two = [&] { x.mul_(2).add_(1); };
  EXPECT_THAT(refusal_of("a recording that does more", changing(3, one, two), {}),
              AllOf(HasSubstr("operation 2 was missing in the last call"), HasSubstr("[PG501]")));
  EXPECT_THAT(refusal_of("a recording that does less", changing(3, two, one), {}),
              AllOf(HasSubstr("missing under capture"), HasSubstr("[PG501]")));
}

TEST_P(PathCheckTest, OtherNumbersAndShapesAreRefused) {
  const auto scale = [&](double by) { return [this, by] { x.mul_(by); }; };
  EXPECT_THAT(
      refusal_of("a recording with another number", changing(3, scale(0.5), scale(0.25)), {}),
      AllOf(HasSubstr("aten::mul_.Scalar was given 0.5 in one call and 0.25 in the next"), HasSubstr("[PG301]")));
  const at::Tensor wide = randn({8}), narrow = randn({4});
  EXPECT_THAT(refusal_of("a recording with another shape",
                         changing(
                             3, [&] { x.sum().mul_(narrow.sum()); }, [&] { x.sum().mul_(wide.sum()); }),
                         {}),
              AllOf(HasSubstr("aten::sum was given tensors of one shape in the last call and of another under capture"),
                    HasSubstr("[PG502]")));
}

// As of two optimizers, where the schedule of one moves before the last call, and the other's after it.
TEST_P(PathCheckTest, ANumberThatSettledHidesNoOther) {
  double settled = 0.5, late = 0.5;
  const auto step = [&] {
    x.mul_(settled).add_(late);
    if (++runs == 2) settled = 0.25;
    if (runs == 3) late = 0.25;
  };
  EXPECT_THAT(
      refusal_of("a recording with another number behind one that settled", step, {}),
      AllOf(HasSubstr("aten::add_.Scalar was given 0.5 in one call and 0.25 in the next"), HasSubstr("[PG301]")));
}

TEST_P(PathCheckTest, ARecordingIsAcceptedWhereTheUserSaysSo) {
  const auto step = changing(
      3, [&] { x.mul_(2); }, [&] { x.add_(1); });
  graph().capture(step, {.accept_capture_path = true});
  graph().replay();
  EXPECT_TRUE(same(x, before + 1));
}

TEST_P(PathCheckTest, NothingIsComparedWhereNothingCanBeTold) {
  const auto usual = [&] { x.mul_(2); };
  const auto other = [&] { x.add_(1); };
  at::Tensor value = x;
  const auto expect_accepted = [&](const std::function<void()>& step, const CaptureOptions& options,
                                   const at::Tensor& expected, const char* what) {
    graph().capture(step, options);
    graph().replay();
    EXPECT_TRUE(same(x, expected)) << what;
    graph().reset();
    x.copy_(before);
  };
  expect_accepted(changing(0, usual, other), {.warmup = 0}, before + 1, "no warm-up");
  expect_accepted(changing(1, usual, other), {.warmup = 1}, before + 1,
                  "one call, which may make what later ones find");
  expect_accepted(changing(1, usual, other), {.warmup = 2}, before + 1, "the first call is another");
  expect_accepted(changing(2, usual, other), {.warmup = 3}, before + 1, "the last two calls are not alike");
  expect_accepted(changing(3, usual, other), {.trace = false}, before + 1, "without trace");
  runs = 0;
  expect_accepted([&] { runs++ % 2 == 0 ? usual() : other(); }, {.warmup = 4}, before * 2, "a path in turn");
  double number = 0;
  expect_accepted([&] { x.add_(number += 1); }, {.warmup = 3}, before + 4, "a number that changes with each call");
}

TEST_P(PathCheckTest, ANumberThatIsAnotherOneInEachCallIsAWarning) {
  double number = 0;
  graph().capture([&] { x.mul_(number += 1); });
  EXPECT_THAT(graph().info().warnings,
              ElementsAre(AllOf(HasSubstr("aten::mul_.Scalar was given 2 in one call and 3 in the next"),
                                HasSubstr("path_check_test.cpp:"), HasSubstr("in a tensor"))));
  graph().reset();
  const auto settles = changing(
      2, [&] { x.mul_(2); }, [&] { x.mul_(3); });
  graph().capture(settles);
  EXPECT_THAT(graph().info().warnings, IsEmpty()) << "a number that settles";
}

TEST_P(PathCheckTest, ANumberThatSettlesIsNotTheOneThatTheWarningNames) {
  double number = 0;
  graph().capture(changing(
      2, [&] { x.mul_(2).add_(number += 1); }, [&] { x.mul_(3).add_(number += 1); }));
  EXPECT_THAT(graph().info().warnings, ElementsAre(HasSubstr("aten::add_.Scalar was given 2 in one call and 3")));
}

TEST_P(PathCheckTest, WhatAFirstCallMakesIsNoOtherPath) {
  at::Tensor momentum;
  const auto step = [&] {
    if (!momentum.defined()) momentum = at::zeros_like(x);
    x.add_(momentum.mul_(0.5).add_(1));
  };
  for (const int warmup : {2, 3}) {
    momentum.reset();
    graph().capture(step, {.warmup = warmup});
    graph().reset();
  }
}

TEST_P(PathCheckTest, StepsThatTrainAreTheSameInTheWarmUpAndUnderCapture) {
  for (const bool restore : {true, false}) {
    for (const int warmup : {2, 3, 4}) {
      Training training(device(), /*dropout=*/0.3);
      Graph trained(device());
      EXPECT_NO_THROW(trained.capture([&] { training.step(); }, {.warmup = warmup, .restore = restore}));
    }
  }
}

TEST_P(PathCheckTest, GradientsAreSetOrAddedUpOrZeroedAsTheStepFindsThem) {
  for (const bool zeroes : {false, true}) {
    for (const bool restore : {false, true}) {
      for (const bool has_gradient : {false, true}) {
        const at::Tensor weight = randn({4, 4}, 2).requires_grad_();
        if (has_gradient) weight.mutable_grad() = at::zeros_like(before);
        const auto step = [&] {
          if (zeroes && weight.grad().defined()) weight.mutable_grad().detach_().zero_();
          (x * weight).sum().backward();
        };
        Graph summed(device());
        EXPECT_NO_THROW(summed.capture(step, {.restore = restore})) << zeroes << restore << has_gradient;
      }
    }
  }
}

#if PIANOLA_WITH_CUDA
TEST_P(PathCheckTest, AStepThatAsksWhetherItsStreamIsCapturedIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  const auto step = [&] {
    const bool captured = at::cuda::currentStreamCaptureStatusMayInitCtx() != at::cuda::CaptureStatus::None;
    captured ? x.add_(x) : x.mul_(2);
  };
  EXPECT_THAT(refusal_of("a step that asks whether it is captured", step, {}),
              AllOf(HasSubstr("under capture"), HasSubstr("[PG501]")));
  graph().capture(step, {.accept_capture_path = true});
  graph().replay();
  EXPECT_TRUE(same(x, before + before));
}
#endif

}  // namespace
}  // namespace pianola::path_check_test
