#include <pianola/graph/eager.hpp>

#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::testing::island_test {
namespace {

using ::testing::HasSubstr;

class IslandTest : public DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(IslandTest);

// Two layers with a part between them that reads a value; trained by hand.
struct Net {
  explicit Net(c10::Device device)
      : first(weight(device, 1)), second(weight(device, 2)), inner(weight(device, 3)), x(weight(device, 4).detach()) {}

  static at::Tensor weight(c10::Device device, std::uint64_t seed) {
    const at::Tensor host = at::randn({8, 8}, at::make_generator<at::CPUGeneratorImpl>(seed));
    return host.to(device).requires_grad_();
  }
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return {first, second, inner}; }

  void step(const EagerPart& part) {
    const at::Tensor hidden = at::relu(x.mm(first));
    const at::Tensor loss = (part({hidden})[0].mm(second) + hidden).square().sum();
    const auto gradients = torch::autograd::grad({loss}, parameters());
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < gradients.size(); ++i) parameters()[i].sub_(gradients[i], 1e-3);
  }
  [[nodiscard]] EagerPart part() const {
    return eager(
        [inner = inner, calls = calls](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
          ++*calls;
          const bool is_large = given[0].sum().item<float>() > 30;
          return {given[0].mm(inner) * (is_large ? 0.5 : 2.0) + given[0]};
        },
        "the inner layer");
  }

  at::Tensor first, second, inner, x;
  std::shared_ptr<int> calls = std::make_shared<int>(0);
};

TEST_P(IslandTest, ReplaysRunThePartBetweenTheGraphsOperations) {
  Net eager_net(device()), net(device());
  const EagerPart eager_part = eager_net.part(), part = net.part();
  Graph graph(device());
  graph.capture([&] { net.step(part); }, {.warmup = 2});
  EXPECT_EQ(*net.calls, 2) << "a capture does not run it";
  // What a part itself writes is its own; warm-up put back the rest.
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = randn({8, 8}, 10 + i);
    eager_net.x.copy_(x);
    net.x.copy_(x);
    eager_net.step(eager_part);
    graph.replay();
    for (std::size_t k = 0; k < 3; ++k) {
      ASSERT_TRUE(same(net.parameters()[k], eager_net.parameters()[k])) << "parameter " << k << ", step " << i;
    }
  }
  EXPECT_EQ(*net.calls, 12);
}

TEST_P(IslandTest, APartCannotSuspendThePoolOfItsReplay) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true});
  const at::Tensor x = randn({512, 512}, 1);
  at::Tensor result;
  bool suspends = false;
  std::string refused;
  const EagerPart part = eager(
      [&](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
        try {
          if (suspends) (void)pool.suspend();
        } catch (const UsageError& error) {
          refused = error.what();
        }
        return {given[0] * 3};
      },
      "the part");
  const auto step = [&] {
    const at::Tensor kept = x.cos() * 1.5;  // scratch, which the part lies in the middle of
    return part({x.sum()})[0] + kept;
  };
  Graph graph(device());
  graph.capture([&] { result = step(); }, {.warmup = 2, .pool = pool});
  suspends = true;
  graph.replay();
  suspends = false;
  EXPECT_THAT(refused, HasSubstr("suspend() was called while a replay of a graph of the pool runs"));
  EXPECT_FALSE(pool.is_asleep());
  EXPECT_TRUE(same(result, step()));
  (void)pool.suspend();
  EXPECT_TRUE(pool.is_asleep());
  pool.resume();
}

// The step lets go of the part's argument, and has room for others then.
TEST_P(IslandTest, WhatThePartSavesIsThereInItsBackwardPass) {
  const EagerPart square = eager([](const std::vector<at::Tensor>& given) { return std::vector{given[0] * given[0]}; });
  const at::Tensor x = randn({8, 8}, 1);
  const auto step = [&](const at::Tensor& weight) {
    at::Tensor y = square({x + weight})[0];
    for (int i = 0; i < 4; ++i) y = at::relu(y * 2 - 1);
    const at::Tensor gradient = torch::autograd::grad({y.sum()}, {weight})[0];
    const at::NoGradGuard no_grad;
    weight.sub_(gradient, 1e-3);
  };
  const at::Tensor eager_weight = Net::weight(device(), 2), weight = Net::weight(device(), 2);
  Graph graph(device());
  graph.capture([&] { step(weight); }, {.warmup = 1});
  for (int i = 0; i < 5; ++i) {
    step(eager_weight);
    graph.replay();
    ASSERT_TRUE(same(weight, eager_weight)) << "step " << i;
  }
}

TEST_P(IslandTest, OutsideOfAStepItIsTheFunction) {
  const EagerPart twice = eager([](const std::vector<at::Tensor>& given) { return std::vector{given[0] * 2}; });
  const at::Tensor x = randn({4});
  EXPECT_TRUE(same(twice({x})[0], x * 2));
}

TEST_P(IslandTest, WhatThePartThrowsComesOutOfTheReplay) {
  bool fails = false;
  const EagerPart part = eager([&](const std::vector<at::Tensor>& given) {
    if (fails) throw std::domain_error("no more");
    return std::vector{given[0] + 1};
  });
  const at::Tensor x = randn({4}), y = at::zeros_like(x);
  Graph graph(device());
  graph.capture([&] { y.copy_(part({x * 2})[0] * 3); }, {.warmup = 1});
  fails = true;
  EXPECT_THROW(graph.replay(), std::domain_error);
  fails = false;
  graph.replay();
  EXPECT_TRUE(same(y, (x * 2 + 1) * 3));
}

TEST_P(IslandTest, AResultOfAnotherShapeIsRefused) {
  std::int64_t rows = 4;
  const EagerPart part = eager(
      [&](const std::vector<at::Tensor>& given) { return std::vector{given[0].slice(0, 0, rows)}; }, "the first rows");
  const at::Tensor x = randn({4, 4});
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = part({x * 2})[0] * 3; }, {.warmup = 1});
  rows = 3;
  EXPECT_THAT(refusal<UsageError>("a part with another result", [&] { graph.replay(); }),
              HasSubstr("the first rows, which stays eager, returned (a Float tensor of shape [3, 4]"));
}

TEST_P(IslandTest, ARecordingWithoutARunBeforeIsRefused) {
  const EagerPart part = eager([](const std::vector<at::Tensor>& given) { return std::vector{given[0] + 1}; });
  const at::Tensor x = randn({4});
  at::Tensor y;
  Graph graph(device());
  EXPECT_THAT(refusal<CaptureError>("a part in a capture without warm-up",
                                    [&] { graph.capture([&] { y = part({x})[0] * 3; }, {.warmup = 0}); }),
              HasSubstr("is called in the recording, and not in the run before"));
}

}  // namespace
}  // namespace pianola::testing::island_test
