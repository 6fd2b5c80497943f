#include <pianola/callable/graphed_callable.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::equality_test {
namespace {

using testing::clone_all;
using testing::expect_same;
using testing::NamedTensors;

constexpr int kSteps = 10;
constexpr int kMicrobatches = 4;

// A network trained twice, eagerly and graphed, from the same seed on the same batches.
class EqualityTest : public testing::CallableTest {
 protected:
  using Inputs = std::function<at::Tensor(std::uint64_t seed)>;
  using Call = std::function<c10::IValue(const at::Tensor&)>;

  // What all steps of a training run leave behind.
  static std::vector<NamedTensors> train(const torch::nn::Module& net, const Call& call, const Inputs& inputs) {
    seed(9);
    testing::FusedAdam optimizer(net.parameters());
    std::vector<NamedTensors> history;
    for (int step = 0; step < kSteps; ++step) {
      for (const at::Tensor& parameter : net.parameters()) {
        if (step % 2 == 0) {
          parameter.mutable_grad().reset();
        } else {
          parameter.mutable_grad().zero_();
        }
      }
      NamedTensors made;
      for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
        at::Tensor x = inputs(static_cast<std::uint64_t>(100 * step + microbatch));
        if (x.is_floating_point()) x.requires_grad_();
        const NamedTensors outputs = leaves_of(call(x), "output");
        at::Tensor loss = torch::zeros({}, device());
        for (const auto& [name, output] : outputs) loss = loss + (output * output).mean();
        loss.backward();
        for (const auto& output : clone_all(outputs)) made.push_back(output);
        made.emplace_back("input gradient", x.grad());
      }
      optimizer.step();
      for (const auto& tensor : clone_all(state_of_module(net))) made.push_back(tensor);
      history.push_back(std::move(made));
    }
    return history;
  }

  template <typename Net>
  static void expect_training_equals_eager(const Inputs& inputs) {
    const auto eager = make_net<Net>();
    const Callable original(eager);
    const auto expected = train(
        *eager, [&](const at::Tensor& x) { return original({x}); }, inputs);

    for (const auto& [name, policy] : {std::pair("accumulate", GradPolicy::accumulate),
                                       std::pair("clone", GradPolicy::clone), std::pair("alias", GradPolicy::alias)}) {
      const auto net = make_net<Net>();
      at::Tensor sample = inputs(1);
      if (sample.is_floating_point()) sample.requires_grad_();
      const NamedTensors before = clone_all(state_of_module(*net));
      GraphedCallable graphed = make_graphed_callable(net, {sample}, {.grad = policy});
      expect_same(state_of_module(*net), before, "after capture");
      const auto actual = train(
          *net, [&](const at::Tensor& x) { return graphed.forward({x}); }, inputs);
      for (int step = 0; step < kSteps; ++step) {
        expect_same(actual[static_cast<std::size_t>(step)], expected[static_cast<std::size_t>(step)],
                    std::string("in step ") + std::to_string(step) + " with policy " + name);
      }
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(EqualityTest);

TEST_P(EqualityTest, MlpTrainsAsInEager) {
  expect_training_equals_eager<testing::MlpNet>([](std::uint64_t seed) { return randn({8, 12}, seed); });
}

TEST_P(EqualityTest, CnnWithBatchNormTrainsAsInEager) {
  expect_training_equals_eager<testing::ConvNet>([](std::uint64_t seed) { return randn({4, 3, 6, 6}, seed); });
}

TEST_P(EqualityTest, LstmTrainsAsInEager) {
  expect_training_equals_eager<testing::LstmNet>([](std::uint64_t seed) { return randn({5, 3, 6}, seed); });
}

TEST_P(EqualityTest, TransformerWithDropoutTrainsAsInEager) {
  expect_training_equals_eager<testing::TransformerNet>([](std::uint64_t seed) { return randn({2, 8, 32}, seed); });
}

TEST_P(EqualityTest, TiedWeightsTrainAsInEager) {
  expect_training_equals_eager<testing::TiedNet>([](std::uint64_t seed) { return randint(17, {3, 7}, seed); });
}

TEST_P(EqualityTest, RecomputedBlockTrainsAsInEager) {
  expect_training_equals_eager<testing::RecomputedNet>([](std::uint64_t seed) { return randn({8, 12}, seed); });
}

}  // namespace
}  // namespace pianola::equality_test
