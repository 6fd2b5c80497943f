#include <pianola/callable/graphed_layers.hpp>
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/core/error.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace pianola::graphed_layers_test {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

// A residual block with dropout.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(torch::nn::Linear shared = nullptr)
      : up(register_module("up", shared.is_empty() ? torch::nn::Linear(12, 12) : std::move(shared))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})))),
        dropout(register_module("dropout", torch::nn::Dropout(0.1))) {}
  at::Tensor forward(const at::Tensor& x) { return x + dropout(torch::gelu(up(norm(x)))); }

  torch::nn::Linear up;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

class GraphedLayersTest : public testing::GraphedTest {
 protected:
  using Blocks = std::vector<Block>;

  Blocks make_blocks(int count, bool share = false) {
    torch::manual_seed(1);
    Blocks blocks;
    for (int i = 0; i < count; ++i) {
      blocks.emplace_back(share && i > 0 ? blocks.front()->up : torch::nn::Linear(nullptr));
      blocks.back()->to(device());
    }
    return blocks;
  }

  static std::vector<GraphedLayers::Layer> named(const Blocks& blocks) {
    std::vector<GraphedLayers::Layer> layers;
    for (std::size_t i = 0; i < blocks.size(); ++i) layers.push_back({"block " + std::to_string(i), blocks[i]});
    return layers;
  }

  static std::vector<at::Tensor> parameters_of(const Blocks& blocks) {
    std::vector<at::Tensor> all;
    for (const Block& block : blocks) {
      for (const at::Tensor& one : block->parameters()) {
        const bool is_known =
            std::any_of(all.begin(), all.end(), [&](const auto& other) { return other.is_same(one); });
        if (!is_known) all.push_back(one);
      }
    }
    return all;
  }

  // Losses and parameters of steps with two microbatches each, whose forward passes both come first.
  template <typename Call>
  std::vector<at::Tensor> train(const Blocks& blocks, int steps, Call&& call) {
    seed(7);
    const std::vector<at::Tensor> parameters = parameters_of(blocks);
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    std::vector<at::Tensor> seen;
    for (int step = 0; step < steps; ++step) {
      sgd.zero_grad();
      std::vector<at::Tensor> losses;
      for (std::uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
        at::Tensor x = batch(static_cast<std::uint64_t>(2 * step) + microbatch);
        for (std::size_t i = 0; i < blocks.size(); ++i) x = call(i, x);
        losses.push_back(square(x));
      }
      for (const at::Tensor& loss : losses) loss.backward();
      sgd.step();
      for (const at::Tensor& loss : losses) seen.push_back(loss.detach());
    }
    for (const at::Tensor& parameter : parameters) seen.push_back(parameter.detach());
    return seen;
  }

  static void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same(actual[i], expected[i])) << i;
  }
};
PIANOLA_ON_EVERY_DEVICE(GraphedLayersTest);

TEST_P(GraphedLayersTest, FiftyStepsOfTwoMicrobatchesInFlightEqualEager) {
  Blocks eager = make_blocks(3), blocks = make_blocks(3);
  GraphedLayers layers = graph_layers(named(blocks), logged());
  const auto expected = train(eager, 50, [&](std::size_t i, const at::Tensor& x) { return eager[i]->forward(x); });
  expect_equal(train(blocks, 50, [&](std::size_t i, const at::Tensor& x) { return layers[i](x); }), expected);
  for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_GE(replays(layers[i]), 90U) << latest(layers[i]).reason;
  EXPECT_TRUE(reasons.empty()) << reasons.front();
}

TEST_P(GraphedLayersTest, DelayedWeightGradientsEqualEager) {
  Blocks eager = make_blocks(3), blocks = make_blocks(3);
  GraphedLayers layers = graph_layers(named(blocks), logged({.delay_weight_gradients = true}));
  const auto gradients = [](const Blocks& all, std::uint64_t step, auto&& call) {
    for (const at::Tensor& parameter : parameters_of(all)) parameter.mutable_grad().reset();
    seed(step);
    at::Tensor x = batch(step);
    for (std::size_t i = 0; i < all.size(); ++i) x = call(i, x);
    square(x).backward();
  };
  for (std::uint64_t step = 0; step < 10; ++step) {
    gradients(eager, step, [&](std::size_t i, const at::Tensor& x) { return eager[i]->forward(x); });
    gradients(blocks, step, [&](std::size_t i, const at::Tensor& x) { return layers[i](x); });
    const bool is_replayed = replays(layers[0]) > 0;
    EXPECT_NE(blocks[0]->up->weight.grad().defined(), is_replayed);
    EXPECT_EQ(layers.backward_weights(), is_replayed);
    const std::vector<at::Tensor> actual = parameters_of(blocks), expected = parameters_of(eager);
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same(actual[i].grad(), expected[i].grad())) << i;
  }
  EXPECT_GE(replays(layers[0]), 6U);
}

TEST_P(GraphedLayersTest, AParameterOfTwoLayersGetsTheSumOfEager) {
  Blocks eager = make_blocks(3, /*share=*/true), blocks = make_blocks(3, /*share=*/true);
  GraphedLayers layers = graph_layers(named(blocks), logged());
  const auto expected = train(eager, 20, [&](std::size_t i, const at::Tensor& x) { return eager[i]->forward(x); });
  expect_equal(train(blocks, 20, [&](std::size_t i, const at::Tensor& x) { return layers[i](x); }), expected);
  for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_GE(replays(layers[i]), 30U) << latest(layers[i]).reason;
}

TEST_P(GraphedLayersTest, TrainingAndEvaluationAreGraphsOfTheirOwn) {
  Blocks eager = make_blocks(2), blocks = make_blocks(2);
  GraphedLayers layers = graph_layers(named(blocks), logged());
  const auto through = [](Blocks& all, std::uint64_t call, auto&& each) {
    for (Block& block : all) block->train(call % 2 == 0);
    const at::AutoGradMode with_gradients(call % 2 == 0);
    at::Tensor x = batch(call);
    for (std::size_t i = 0; i < all.size(); ++i) x = each(i, x);
    return x;
  };
  for (std::uint64_t call = 0; call < 12; ++call) {
    seed(call);
    const at::Tensor expected = through(eager, call, [&](std::size_t i, const at::Tensor& x) { return eager[i](x); });
    seed(call);
    EXPECT_TRUE(
        same(through(blocks, call, [&](std::size_t i, const at::Tensor& x) { return layers[i](x); }), expected));
  }
  EXPECT_EQ(layers.at("block 1").info().signatures.size(), 2U);
  EXPECT_EQ(replays(layers.at("block 1")), 6U);
}

TEST_P(GraphedLayersTest, AfterResetAllTheyWarmUpAgain) {
  Blocks blocks = make_blocks(2);
  GraphedLayers layers = graph_layers(named(blocks), logged({.warmup = 1}));
  const auto call = [&](std::int64_t rows) {
    const at::NoGradGuard no_grad;
    at::Tensor x = batch(0, rows);
    for (Block& block : blocks) block->eval();
    for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](x);
    return x;
  };
  for (int i = 0; i < 4; ++i) (void)call(8);
  EXPECT_EQ(layers.info().layers[0].info.signatures.size(), 1U);
  layers.reset_all();
  EXPECT_TRUE(layers.info().layers[0].info.signatures.empty());
  const at::Tensor first = call(5);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(same(call(5), first));
  EXPECT_GE(replays(layers[1]), 2U);
}

TEST_P(GraphedLayersTest, TheReportHasALinePerLayer) {
  Blocks blocks = make_blocks(2);
  std::vector<GraphedLayers::Layer> named_layers = named(blocks);
  const auto reads = [](const at::Tensor& x) { return x * x.sum().item<float>(); };
  named_layers.push_back({"reads", reads});
  named_layers.push_back({"reads too", reads});
  named_layers.push_back({"idle", [](const at::Tensor& x) { return x; }});
  GraphedLayers layers = graph_layers(std::move(named_layers), logged());
  const at::NoGradGuard no_grad;
  for (int call = 0; call < 6; ++call) {
    at::Tensor x = batch(0);
    for (std::size_t i = 0; i < 4; ++i) x = layers[i](x);
  }
  const std::string text = layers.info().report().to_text();
  EXPECT_NE(text.find("layers    5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("captured  2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("reads and 1 other: "), std::string::npos) << text;
  EXPECT_NE(text.find("idle       not called"), std::string::npos) << text;
}

TEST(GraphLayers, RefusesNoLayersAndTwoOfOneName) {
  EXPECT_THAT(refusal<UsageError>("no layers", [] { (void)graph_layers({}); }), HasSubstr("no layer was given"));
  const auto itself = [](const at::Tensor& x) { return x; };
  EXPECT_THAT(refusal<UsageError>("one name",
                                  [&] {
                                    (void)graph_layers({{"a", itself}, {"a", itself}});
                                  }),
              HasSubstr("two layers have the name 'a'"));
  GraphedLayers layers = graph_layers({{"a", itself}});
  EXPECT_THAT(refusal<UsageError>("unknown name", [&] { (void)layers.at("b"); }),
              HasSubstr("no graphed layer has the name 'b'"));
}

}  // namespace
}  // namespace pianola::graphed_layers_test
