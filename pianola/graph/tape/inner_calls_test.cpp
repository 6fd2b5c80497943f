// What operators call inside themselves: see Note [Calls of a kernel for autograd] in trace/op_info.cpp.
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

namespace pianola::testing::inner_calls_test {
namespace {

// ---- operators of somebody's own ----

at::Tensor& hoard() {
  static at::Tensor kept;
  return kept;
}

// Keeps what it made inside.
at::Tensor hoarding(const at::Tensor& x) {
  hoard() = at::mul(x, 3);
  return at::add(hoard(), 1);
}

at::Tensor& increment(at::Tensor& x) { return x.add_(1); }

// Does all the work without leaving autograd.
at::Tensor& increment_above_autograd(at::Tensor& x) { return x.add_(1); }

// As attention does, which computes the projections of one input at once.
at::Tensor times(const at::Tensor& x, const at::Tensor& y) { return at::mul(x, x.is_same(y) ? 2 : 3); }

TORCH_LIBRARY(pianola_inner_calls, library) {
  library.def("times(Tensor x, Tensor y) -> Tensor");
  library.impl("times", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(times));
  library.def("hoarding(Tensor x) -> Tensor");
  library.def("increment(Tensor(a!) x) -> Tensor(a!)");
  library.impl("hoarding", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(hoarding));
  library.impl("increment", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(increment));
  library.impl("increment", c10::DispatchKey::Autograd, TORCH_FN(increment_above_autograd));
}

at::Tensor call(const char* name, const at::Tensor& x) {
  torch::jit::Stack stack = {x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack[0].toTensor();
}

class InnerCallsTest : public DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(InnerCallsTest);

TEST_P(InnerCallsTest, ATensorThatIsGivenTwiceIsOneTensorInAReplay) {
  const at::Tensor x = randn({3}), y = randn({3}, 2);
  at::Tensor same_one, others;
  const auto times = c10::Dispatcher::singleton().findSchemaOrThrow("pianola_inner_calls::times", "");
  Graph graph(device());
  graph.capture([&] {
    torch::jit::Stack twice = {x, x}, two = {x, y};
    times.callBoxed(twice);
    times.callBoxed(two);
    same_one = twice[0].toTensor();
    others = two[0].toTensor();
  });
  x.copy_(randn({3}, 3));
  graph.replay();
  EXPECT_TRUE(same(same_one, x * 2));
  EXPECT_TRUE(same(others, x * 3));
}

TEST_P(InnerCallsTest, TheGradientOfAFactorInPlaceFollowsTheInput) {
  const at::Tensor x = randn({3}), a = randn({3}, 2).requires_grad_(), b = randn({3}, 3).requires_grad_();
  const auto step = [&] { return torch::autograd::grad({(x * a).mul_(b).sum()}, {a, b}); };
  std::vector<at::Tensor> gradients;
  Graph graph(device());
  graph.capture([&] { gradients = step(); });
  for (std::uint64_t round = 4; round < 7; ++round) {
    x.copy_(randn({3}, round));
    graph.replay();
    const std::vector<at::Tensor> expected = step();
    EXPECT_TRUE(same(gradients[0], expected[0]));
    EXPECT_TRUE(same(gradients[1], expected[1]));
  }
}

TEST_P(InnerCallsTest, AnOperatorThatWorksAboveAutogradRunsOnce) {
  at::Tensor x = randn({3});
  const at::Tensor before = x.clone();
  Graph graph(device());
  graph.capture([&] { call("pianola_inner_calls::increment", x); });
  graph.replay();
  EXPECT_TRUE(same(x, before + 1));
  graph.replay();
  EXPECT_TRUE(same(x, before + 1 + 1));
}

TEST_P(InnerCallsTest, ATensorThatAnOperatorKeptIsRefusedOnTheTape) {
  const at::Tensor x = randn({3});
  const auto step = [&] {
    const at::Tensor y = call("pianola_inner_calls::hoarding", x);
    return at::exp(hoard()) + y;
  };
  Graph graph(device());
  if (on_cuda()) {
    at::Tensor result;
    graph.capture([&] { result = step(); });
    x.copy_(randn({3}, 2));
    graph.replay();
    EXPECT_TRUE(same(result, step()));
  } else {
    EXPECT_THAT(
        refusal<CaptureError>("a tensor that an operator kept", [&] { graph.capture([&] { step(); }); }),
        ::testing::AllOf(::testing::HasSubstr("aten::exp reads a tensor that pianola_inner_calls::hoarding made "
                                              "and did not return"),
                         ::testing::HasSubstr("inner_calls_test.cpp:"), ::testing::HasSubstr("return the tensor")));
    graph.capture([&] { call("pianola_inner_calls::hoarding", x); });
  }
  hoard().reset();
}

}  // namespace
}  // namespace pianola::testing::inner_calls_test
