#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/device_test.hpp>

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::module_test {
namespace {

using testing::clone_all;
using testing::expect_same;
using testing::NamedTensors;

// A network of torch::nn modules, with parameters, buffers and dropout, and a step as users write it.
class ModuleTest : public testing::DeviceTest {
 protected:
  struct Net : torch::nn::Module {
    Net() {
      convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
      norm = register_module("norm", torch::nn::BatchNorm2d(8));
      dropout = register_module("dropout", torch::nn::Dropout(0.25));
      out = register_module("out", torch::nn::Linear(8 * 36, 5));
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(dropout(torch::relu(norm(convolution(x)))).flatten(1)); }
    torch::nn::Conv2d convolution{nullptr};
    torch::nn::BatchNorm2d norm{nullptr};
    torch::nn::Dropout dropout{nullptr};
    torch::nn::Linear out{nullptr};
  };

  struct Run {
    explicit Run(bool train = true) : x(randn({4, 3, 6, 6})), target(randint(5, {4})) {
      torch::manual_seed(5);
      net = std::make_shared<Net>();
      net->to(device());
      net->train(train);
    }
    void feed(int step) {
      x.copy_(randn({4, 3, 6, 6}, 10 + static_cast<std::uint64_t>(step)));
      target.copy_(randint(5, {4}, 10 + static_cast<std::uint64_t>(step)));
    }
    void forward_backward() {
      loss = torch::nn::functional::cross_entropy(net->forward(x), target);
      loss.backward();
    }
    void descend() {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
    [[nodiscard]] NamedTensors state() const {
      NamedTensors all;
      for (const auto& item : net->named_parameters()) {
        all.emplace_back(item.key(), item.value());
        all.emplace_back(item.key() + ".grad", item.value().grad());
      }
      for (const auto& item : net->named_buffers()) all.emplace_back(item.key(), item.value());
      all.emplace_back("generator", state_of(generator()));
      return all;
    }
    [[nodiscard]] NamedTensors everything() const {
      NamedTensors all = state();
      all.emplace_back("loss", loss);
      return all;
    }
    std::shared_ptr<Net> net;
    torch::Tensor x, target, loss;
  };

  // Convolution's backward may differ from run to run on CUDA; deterministic kernels do not.
  void SetUp() override {
    DeviceTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    DeviceTest::TearDown();
  }

  using Part = std::function<void(Run&)>;
  // `before` runs eagerly before each step and, once, before the capture; `step` is captured.
  static void expect_replays_equal_eager(const Part& before, const Part& step, bool train = true) {
    constexpr int kSteps = 6;
    Run eager(train);
    before(eager);
    seed(9);
    std::vector<NamedTensors> expected;
    for (int i = 0; i < kSteps; ++i) {
      eager.feed(i);
      before(eager);
      step(eager);
      expected.push_back(clone_all(eager.everything()));
    }

    Run graphed(train);
    before(graphed);
    const NamedTensors state = clone_all(graphed.state());
    Graph graph(device());
    graph.capture([&] { step(graphed); });
    const NamedTensors after = graphed.state();
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (!state[i].second.defined()) continue;  // a gradient that the step defined stays
      EXPECT_TRUE(testing::same(after[i].second, state[i].second)) << state[i].first << " after capture";
    }
    seed(9);
    for (int i = 0; i < kSteps; ++i) {
      graphed.feed(i);
      before(graphed);
      graph.replay();
      expect_same(graphed.everything(), expected[static_cast<std::size_t>(i)], "in step " + std::to_string(i));
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(ModuleTest);

TEST_P(ModuleTest, SetToNoneInsideTheStep) {
  expect_replays_equal_eager([](Run&) {},
                             [](Run& run) {
                               run.net->zero_grad(/*set_to_none=*/true);
                               run.forward_backward();
                               run.descend();
                             });
}

TEST_P(ModuleTest, ZeroedInsideTheStep) {
  expect_replays_equal_eager(
      [](Run& run) {
        if (!run.net->out->bias.grad().defined()) {
          for (torch::Tensor& parameter : run.net->parameters())
            parameter.mutable_grad() = torch::zeros_like(parameter);
        }
      },
      [](Run& run) {
        run.net->zero_grad(/*set_to_none=*/false);
        run.forward_backward();
        run.descend();
      });
}

TEST_P(ModuleTest, ZeroedOutsideTheStep) {
  expect_replays_equal_eager(
      [](Run& run) {
        if (run.net->out->bias.grad().defined()) return run.net->zero_grad(/*set_to_none=*/false);
        for (torch::Tensor& parameter : run.net->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
      },
      [](Run& run) { run.forward_backward(); });
}

TEST_P(ModuleTest, NeverZeroedSoThatGradientsAccumulate) {
  expect_replays_equal_eager(
      [](Run& run) {
        if (run.net->out->bias.grad().defined()) return;
        for (torch::Tensor& parameter : run.net->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
      },
      [](Run& run) { run.forward_backward(); });
}

TEST_P(ModuleTest, InEvaluationModeRunningStatisticsAreReadAndNothingIsDrawn) {
  expect_replays_equal_eager([](Run&) {},
                             [](Run& run) {
                               const torch::NoGradGuard no_grad;
                               run.loss = run.net->forward(run.x).log_softmax(1);
                             },
                             /*train=*/false);
}

// With no gradients before the capture and none taken away after it, each replay sets them, as eager does after
// zero_grad() with set_to_none outside of the step.
TEST_P(ModuleTest, SetToNoneOutsideTheStepBeforeCapture) {
  Run eager, graphed;
  graphed.net->zero_grad(true);
  Graph graph(device());
  graph.capture([&] { graphed.forward_backward(); });
  for (int step = 0; step < 4; ++step) {
    eager.feed(step);
    graphed.feed(step);
    const at::Tensor state = state_of(generator());
    eager.net->zero_grad(true);
    eager.forward_backward();
    const NamedTensors expected = clone_all(eager.everything());
    at::Generator rewound = generator();
    rewound.set_state(state);
    graph.replay();
    expect_same(graphed.everything(), expected, "in step " + std::to_string(step));
  }
}

}  // namespace
}  // namespace pianola::module_test
