#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>
#if PIANOLA_WITH_CUDA
#include <pianola/torch_abi/cuda/graph_reset.hpp>
#endif

#include <ATen/TensorIndexing.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/index.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>
#include <ATen/record_function.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace pianola::host_read_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::Training;

/// A way to bring a tensor's value to the host, and the operation that the message has to name.
struct HostRead {
  const char* name;
  const char* operation;
  bool cuda_only;
  std::function<void(const at::Tensor&)> read;
};

void index_by(const at::Tensor& x, const at::Tensor& by) { (void)x.index({by}); }

const std::vector<HostRead>& host_reads() {
  static const std::vector<HostRead> all = {
      {"Item", "aten::item", false, [](const at::Tensor& x) { (void)x[0].item<float>(); }},
      {"Equal", "aten::equal", false, [](const at::Tensor& x) { (void)at::equal(x, x.clone()); }},
      {"IsNonzero", "aten::is_nonzero", false, [](const at::Tensor& x) { (void)x[0].is_nonzero(); }},
      {"Nonzero", "aten::nonzero", false, [](const at::Tensor& x) { (void)at::nonzero(x); }},
      {"BooleanIndex", "aten::index", false, [](const at::Tensor& x) { index_by(x, x > 0); }},
      {"BooleanWrite", "aten::index_put_", false,
       [](const at::Tensor& x) { (void)x.clone().index_put_({x > 0}, at::ones({2}, x.options())); }},
      {"MaskedSelect", "aten::masked_select", false, [](const at::Tensor& x) { (void)at::masked_select(x, x > 0); }},
      {"Where", "aten::where", false, [](const at::Tensor& x) { (void)at::where(x > 0); }},
      {"Unique", "aten::unique_consecutive", false, [](const at::Tensor& x) { (void)at::unique_consecutive(x); }},
      {"RepeatInterleave", "aten::repeat_interleave", false,
       [](const at::Tensor& x) { (void)at::repeat_interleave(at::ones({3}, x.options().dtype(at::kLong))); }},
      {"Cpu", "aten::", true, [](const at::Tensor& x) { (void)x.cpu(); }},
      {"Print", "aten::", true, [](const at::Tensor& x) { std::ostringstream() << x; }},
  };
  return all;
}

class HostReadTest : public testing::DeviceTest {
 protected:
  // One positive element, so that a mask picks one.
  static at::Tensor input() { return at::relu(randn({16})); }
};
PIANOLA_ON_EVERY_DEVICE(HostReadTest);

TEST_P(HostReadTest, EveryWayIsRefusedByNameWithPlaceAndCureAndLeavesNothing) {
  for (const HostRead& way : host_reads()) {
    if (way.cuda_only && !on_cuda()) continue;
    SCOPED_TRACE(way.name);
    Training training(device());
    const at::Tensor x = way.name == std::string("BooleanWrite") ? at::ones({2}, device()) : input();
    const NamedTensors before = clone_all(training.state());
    Graph graph(device());
    const std::string message = refusal<CaptureError>(std::string("host read ") + way.name + " on " + GetParam(), [&] {
      graph.capture([&] {
        training.step();
        way.read(x);
      });
    });
    EXPECT_THAT(message, AllOf(HasSubstr(way.operation), HasSubstr("where: operation"),
                               HasSubstr("host_read_test.cpp:"), HasSubstr("fix:")));
    EXPECT_FALSE(graph.captured());
    expect_same(training.state(), before, "after the refusal");
    graph.capture([&] { training.step(); });
    Training eager(device());
    eager.step();
    graph.replay();
    expect_same(training.everything(), eager.everything(), "in the next capture");
  }
}

TEST_P(HostReadTest, TheTapeAllowsCopiesAndPrintsThatLookLikeOtherOperations) {
  if (on_cuda()) GTEST_SKIP() << "refused there";
  const at::Tensor x = input();
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] {
    y = x.cpu() * 2;
    std::ostringstream() << x.sizes();
  });
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
}

TEST_P(HostReadTest, NamesTheFirstOfSeveralAndItsScopeAndNumber) {
  const at::Tensor x = input();
  Graph graph(device());
  const std::string message = refusal<CaptureError>(std::string("host read in a user scope on ") + GetParam(), [&] {
    graph.capture(
        [&] {
          const at::Tensor y = at::relu(x);
          RECORD_USER_SCOPE("encoder.3");
          (void)at::nonzero(y);
          (void)y[0].item<float>();
        },
        {.warmup = 0});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("aten::nonzero"), HasSubstr("operation 2 of the step"), HasSubstr("encoder.3"),
                             ::testing::Not(HasSubstr("aten::item"))));
}

TEST_P(HostReadTest, NamesTheForwardLineOfAReadInBackward) {
#if PIANOLA_WITH_CUDA
  if (on_cuda() && !torch_abi::kMayFreeInBrokenCaptures) GTEST_SKIP() << "torch ends the process";
#endif
  // The backward of an index by a mask puts by that mask; the forward is outside the capture.
  const at::Tensor x = randn({16}).requires_grad_();
  Graph graph(device());
  const std::string message = refusal<CaptureError>(std::string("host read in backward on ") + GetParam(), [&] {
#if PIANOLA_WITH_CUDA
    c10::cuda::OptionalCUDAStreamGuard on_a_side_stream;  // the backward runs there too
    if (on_cuda()) on_a_side_stream.reset_stream(c10::cuda::getStreamFromPool());
#endif
    const at::Tensor y = x.index({x > 0}).sum();
    graph.capture([&] { (void)torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true); }, {.warmup = 0});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("index_put"), HasSubstr("in the backward pass (IndexBackward0)")));
}

TEST_P(HostReadTest, SaysThatABackwardRunsOnTheDefaultStreamOfItsForward) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  const at::Tensor x = randn({16}).requires_grad_();
  const at::Tensor y = (x * x).sum();
  Graph graph(device());
  const std::string message = refusal<CaptureError>("backward of a forward on the default stream", [&] {
    graph.capture([&] { (void)torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true); }, {.warmup = 0});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("default stream"), HasSubstr("capture its forward too")));
}

TEST_P(HostReadTest, IndicesThatAreNumbersAreFine) {
  const at::Tensor x = randn({16, 4}), rows = randint(16, {5});
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x.index({rows}) * 2; });
  rows.copy_(randint(16, {5}, 3));
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, x.index({rows}) * 2));
}

TEST_P(HostReadTest, MaskedArithmeticIsTheCureThatTheMessageNames) {
  const at::Tensor x = randn({16});
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = at::where(x > 0, x, at::zeros_like(x)).sum(); });
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({16}, 10 + step));
    graph.replay();
    EXPECT_TRUE(same(y, at::where(x > 0, x, at::zeros_like(x)).sum()));
  }
}

TEST_P(HostReadTest, WithoutTraceTheMessageSaysHowToHaveTheOperationNamed) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has to see every operation anyway";
  const at::Tensor x = input();
  Graph graph(device());
  EXPECT_THAT(refusal<CaptureError>("host read with the trace off",
                                    [&] { graph.capture([&] { (void)x.sum().item<float>(); }, {.trace = false}); }),
              HasSubstr("CaptureOptions::trace"));
}

}  // namespace
}  // namespace pianola::host_read_test
