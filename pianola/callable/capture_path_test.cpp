// Callables that do otherwise under capture than in the warm-up: a graph would repeat what eager never does.
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <torch/csrc/autograd/custom_function.h>

#include <string>

namespace pianola::capture_path_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

constexpr int kWarmUp = 3;
int forwards = 0, backwards = 0;

// As a library that asks whether it is captured, and does otherwise then.
at::Tensor doubled(const at::Tensor& x, int& runs) { return runs++ < kWarmUp ? x + x : x * 2.0; }

struct DoubledInBackward : torch::autograd::Function<DoubledInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {doubled(gradients[0], backwards)};
  }
};

class CallableCapturePathTest : public testing::CallableTest {
 protected:
  static at::Tensor sample() { return randn({4, 4}).requires_grad_(); }
  static at::Tensor twice(const at::Tensor& x) { return doubled(x, forwards); }
  void SetUp() override {
    testing::CallableTest::SetUp();
    forwards = backwards = 0;
  }
};
PIANOLA_ON_EVERY_DEVICE(CallableCapturePathTest);

TEST_P(CallableCapturePathTest, AnotherPathForwardIsRefusedByBothLines) {
  for (const int slots : {1, 3}) {
    forwards = 0;
    const std::string message = refusal<CaptureError>("a callable that asks whether it is captured", [&] {
      (void)make_graphed_callable(&twice, {sample()}, {.warmup = kWarmUp, .slots = slots});
    });
    EXPECT_THAT(message, AllOf(HasSubstr("the operations in the last call differ from those under capture"),
                               HasSubstr("operation 1 was aten::add.Tensor ("), HasSubstr("and aten::mul"),
                               HasSubstr("accept_capture_path"), HasSubstr("[PG501]")));
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = message.find("capture_path_test.cpp:", at)) != std::string::npos; ++at) ++lines;
    EXPECT_EQ(lines, 2U) << message;
  }
}

TEST_P(CallableCapturePathTest, AnotherPathBackwardIsRefused) {
  const auto step = [](const at::Tensor& x) { return DoubledInBackward::apply(x).relu(); };
  EXPECT_THAT(refusal<CaptureError>("a backward pass that asks whether it is captured",
                                    [&] { (void)make_graphed_callable(step, {sample()}, {.warmup = kWarmUp}); }),
              AllOf(HasSubstr("aten::add.Tensor"), HasSubstr("aten::mul"), HasSubstr("under capture")));
}

TEST_P(CallableCapturePathTest, WhatItDoesUnderCaptureCanBeAccepted) {
  GraphedCallable callable =
      make_graphed_callable(&twice, {sample()}, {.warmup = kWarmUp, .accept_capture_path = true});
  const at::Tensor x = sample();
  EXPECT_TRUE(same(callable(x), x.detach() * 2.0));
  EXPECT_EQ(forwards, kWarmUp + 1);
}

TEST_P(CallableCapturePathTest, NothingIsComparedWithOneWarmUpRun) {
  forwards = kWarmUp - 1;
  (void)make_graphed_callable(&twice, {sample()}, {.warmup = 1});
}

}  // namespace
}  // namespace pianola::capture_path_test
