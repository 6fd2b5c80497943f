#include <pianola/callable/graphed.hpp>
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/fp8/linear.hpp>
#include <pianola/fp8/product.hpp>
#include <pianola/fp8/region.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/training/full_iteration.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::fp8::linear_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 32)
      : first(register_module("first", Float8Linear(width, 2 * width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * width})))),
        second(register_module("second", Float8Linear(torch::nn::LinearOptions(2 * width, width).bias(false)))),
        head(register_module("head", torch::nn::Linear(width, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return head(second(torch::gelu(norm(first(x))))); }
  Float8Linear first;
  torch::nn::LayerNorm norm;
  Float8Linear second;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

struct Named {
  std::string name;
  Recipe recipe;
};
// Blocks of 128 want wider layers, and more tokens.
std::vector<Named> recipes() {
  return {{"delayed", {.amax_history_length = 4}},
          {"delayed, most recent, margin, interval",
           {.margin = 1, .amax_history_length = 3, .amax_compute = AmaxCompute::most_recent, .interval = 2}},
          {"delayed, e4m3", {.format = Format::e4m3, .amax_history_length = 16}},
          {"tensor", {.scaling = Scaling::tensor}},
          {"row", {.scaling = Scaling::row, .powers_of_two = true}},
          {"block", {.scaling = Scaling::block}}};
}
std::int64_t width_of(const Recipe& recipe) { return recipe.scaling == Scaling::block ? 128 : 32; }

class Float8LinearTest : public testing::DeviceTest {
 protected:
  // A model, its optimizer, and one step as people write it.
  struct Training {
    explicit Training(const Recipe& recipe) : width(width_of(recipe)), net(made(width)) {
      share_scales(*net, recipe);
      optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.05));
    }
    static Net made(std::int64_t width) {
      torch::manual_seed(0);
      Net net(width);
      net->to(device());
      return net;
    }
    [[nodiscard]] at::Tensor batch(std::uint64_t seed) const { return randn({width == 128 ? 128 : 16, width}, seed); }
    at::Tensor loss_of(const at::Tensor& x, const RegionOptions& options = {}) {
      at::Tensor y;
      {
        const Autocast region(options);
        y = net->forward(x);
      }
      return (y - 1).square().mean();
    }
    at::Tensor step(const at::Tensor& x) {
      optimizer->zero_grad();
      at::Tensor loss = loss_of(x);
      loss.backward();
      optimizer->step();
      return loss.detach();
    }
    [[nodiscard]] testing::NamedTensors state() const {
      testing::NamedTensors all;
      for (const auto& one : net->named_parameters()) {
        all.emplace_back(one.key(), one.value().detach());
        all.emplace_back(one.key() + ".grad", one.value().grad());
      }
      for (const auto& one : net->named_buffers()) all.emplace_back(one.key(), one.value());
      return all;
    }
    std::int64_t width;
    Net net;
    std::unique_ptr<torch::optim::SGD> optimizer;
  };
};
PIANOLA_ON_EVERY_DEVICE(Float8LinearTest);

TEST_P(Float8LinearTest, ThreeProductsAreThoseOfTheFormula) {
  for (const auto& [name, recipe] : recipes()) {
    const std::int64_t width = width_of(recipe), tokens = width == 128 ? 128 : 16;
    Float8Linear layer(width, 2 * width);
    layer->to(device());
    share_scales(*layer, recipe);
    const at::Tensor x = randn({2, tokens / 2, width}, 1).requires_grad_(),
                     gradient = randn({2, tokens / 2, 2 * width}, 2);
    at::Tensor y;
    {
      const Autocast region;
      y = layer(x);
    }
    y.backward(gradient);
    const bool is_block = recipe.scaling == Scaling::block;
    const auto quantized = [&, one = recipe](const at::Tensor& values, bool is_weight, c10::ScalarType type) {
      QuantizeOptions options{.type = type, .powers_of_two = one.powers_of_two || is_block, .columns = true};
      if (one.scaling == Scaling::delayed) {
        options.granularity = Granularity::given;  // of the first step
        options.scale = at::ones({}, values.options());
      }
      if (one.scaling == Scaling::row) options.granularity = Granularity::row;
      if (is_block) options.granularity = is_weight ? Granularity::block_128x128 : Granularity::block_1x128;
      return quantize(values, options);
    };
    const at::NoGradGuard no_grad;
    const at::Tensor matrix = x.detach().view({tokens, width}), outer = gradient.view({tokens, 2 * width});
    const Quantized input = quantized(matrix, false, c10::kFloat8_e4m3fn),
                    weight = quantized(layer->weight.detach(), true, c10::kFloat8_e4m3fn),
                    back = quantized(outer, false, recipe.gradient_type());
    const at::Tensor expected = scaled_product(input.rows, weight.rows, at::kFloat, true).add_(layer->bias);
    EXPECT_TRUE(testing::same(y.detach().view({tokens, 2 * width}), expected)) << name;
    EXPECT_TRUE(
        testing::same(x.grad().view({tokens, width}), scaled_product(back.rows, weight.columns, at::kFloat, false)))
        << name;
    EXPECT_TRUE(testing::same(layer->weight.grad(), scaled_product(back.columns, input.columns, at::kFloat, false)))
        << name;
    EXPECT_TRUE(testing::same(layer->bias.grad(), outer.sum(0))) << name;
    const at::Tensor plain = at::linear(matrix, layer->weight.detach(), layer->bias.detach());
    EXPECT_LE((expected - plain).norm().item<double>(), 0.06 * plain.norm().item<double>()) << name;
  }
}

TEST_P(Float8LinearTest, AGraphOfTheWholeStepEqualsEagerOverAHundredSteps) {
  for (const auto& [name, recipe] : recipes()) {
    Training eager(recipe), ours(recipe);
    Graph graph(device());
    const at::Tensor x = ours.batch(0);
    at::Tensor loss;
    graph.capture([&] { loss = ours.step(x); }, {.warmup = 3});
    for (std::uint64_t number = 0; number < 100; ++number) {
      x.copy_(ours.batch(number));
      graph.replay();
      ASSERT_TRUE(testing::same(loss, eager.step(eager.batch(number)))) << name << ", step " << number;
    }
    testing::expect_same(ours.state(), eager.state(), name);
    if (recipe.scaling == Scaling::delayed) {
      EXPECT_EQ(ours.net->named_buffers()["fp8_updates"].item<std::int64_t>(), 100);
      EXPECT_FALSE(ours.net->named_buffers()["fp8_scale"].eq(1).any().item<bool>()) << "each tensor has got a scale";
    }
  }
}

TEST_P(Float8LinearTest, FullIterationEqualsEager) {
  const Recipe recipe{.amax_history_length = 4};
  Training eager(recipe), ours(recipe);
  FullIteration iteration(
      [&](const std::vector<c10::IValue>& in) -> c10::IValue { return ours.step(in.at(0).toTensor()); }, {.warmup = 3});
  for (std::uint64_t number = 0; number < 30; ++number) {
    const at::Tensor loss = iteration({ours.batch(number)}).toTensor();
    ASSERT_TRUE(testing::same(loss, eager.step(eager.batch(number)))) << number;
  }
  testing::expect_same(ours.state(), eager.state());
}

// Layers as graphs of their own, in a region of the loop: replays tell it what they noted.
TEST_P(Float8LinearTest, GraphsOfLayersInARegionEqualEager) {
  for (const auto& [name, recipe] : recipes()) {
    Training eager(recipe), ours(recipe);
    Graphed first = pianola::graphed(ours.net->first.ptr()), second = pianola::graphed(ours.net->second.ptr());
    const auto step = [&](Training& training, const at::Tensor& x, bool replays) {
      training.optimizer->zero_grad();
      at::Tensor y;
      {
        const Autocast region;
        y = replays ? first(x) : training.net->first(x);
        y = torch::gelu(training.net->norm(y));
        y = training.net->head(replays ? second(y) : training.net->second(y));
      }
      const at::Tensor loss = (y - 1).square().mean();
      loss.backward();
      training.optimizer->step();
      return loss.detach();
    };
    for (std::uint64_t number = 0; number < 30; ++number) {
      const at::Tensor x = eager.batch(number);
      ASSERT_TRUE(testing::same(step(ours, x, true), step(eager, x, false))) << name << ", step " << number;
    }
    testing::expect_same(ours.state(), eager.state(), name);
    for (const Graphed* one : {&first, &second}) {
      ASSERT_EQ(one->info().signatures.size(), 1U);
      EXPECT_GE(one->info().signatures[0].replays, 25U) << one->info().signatures[0].reason;
    }
  }
}

// Replays outside of the region of the capture would be in 8 bits there, too.
TEST_P(Float8LinearTest, AGraphIsReplayedInARegionLikeThatOfItsCapture) {
  Training training({.amax_history_length = 4});
  const at::Tensor x = training.batch(1);
  const auto run = [&] { (void)training.net->forward(x); };
  Graph graph(device());
  {
    const Autocast region;
    graph.capture(run, {.warmup = 1});
    graph.replay();
  }
  EXPECT_EQ(training.net->named_buffers()["fp8_updates"].item<std::int64_t>(), 1);
  EXPECT_THAT(testing::refusal<ReplayError>("outside", [&] { graph.replay(); }),
              AllOf(HasSubstr("captured in a region with 8 bits, each layer's recipe, and replay() was called in none"),
                    HasSubstr("replay it inside of a region like that of its capture")));
  {
    const Autocast other({.is_first_microbatch = true});
    EXPECT_THAT(testing::refusal<ReplayError>("another", [&] { graph.replay(); }),
                HasSubstr("one with 8 bits, each layer's recipe, weights kept"));
  }
  GraphedCallable callable = [&] {
    const Autocast region;
    return make_graphed_callable(training.net->first.ptr(), {training.batch(2)});
  }();
  EXPECT_THAT(testing::refusal<GuardError>("a callable", [&] { (void)callable(x); }),
              HasSubstr("region: captured in 8 bits, each layer's recipe, now in none"));
  const Autocast region;
  EXPECT_TRUE(testing::same(callable(x), training.net->first(x)));
}

// An evaluation between steps has a graph of its own.
TEST_P(Float8LinearTest, OutsideOfTheRegionALayerHasAnotherGraph) {
  Training training({.scaling = Scaling::tensor});
  Graphed first = pianola::graphed(training.net->first.ptr());
  const at::NoGradGuard no_grad;
  for (std::uint64_t number = 0; number < 20; ++number) {
    const at::Tensor x = training.batch(number);
    EXPECT_TRUE(testing::same(first(x), training.net->first(x)));
    const Autocast region;
    EXPECT_TRUE(testing::same(first(x), training.net->first(x)));
  }
  EXPECT_EQ(first.info().signatures.size(), 2U);
}

TEST_P(Float8LinearTest, WeightsOfTheFirstMicrobatchServeTheOthers) {
  for (const auto& [name, recipe] : recipes()) {
    const auto step = [](Training& training, const std::vector<at::Tensor>& batches, bool keeps) {
      training.optimizer->zero_grad();
      for (std::size_t i = 0; i < batches.size(); ++i) {
        RegionOptions options;
        if (keeps) options.is_first_microbatch = i == 0;
        training.loss_of(batches[i], options).backward();
      }
      training.optimizer->step();
    };
    Training eager(recipe), ours(recipe), anew(recipe);
    std::vector<at::Tensor> batches;
    for (std::uint64_t i = 0; i < 4; ++i) batches.push_back(eager.batch(i));
    Graph graph(device());
    graph.capture([&] { step(ours, batches, true); }, {.warmup = 3});
    for (std::uint64_t number = 0; number < 10; ++number) {
      for (std::uint64_t i = 0; i < 4; ++i) batches[i].copy_(eager.batch(10 * number + i));
      graph.replay();
      step(eager, batches, true);
      step(anew, batches, false);
      testing::expect_same(ours.state(), eager.state(), name);
      // Scales of the moment are those of the weight; delayed ones have moved on by the second microbatch.
      if (recipe.scaling != Scaling::delayed) testing::expect_same(eager.state(), anew.state(), name);
    }
  }
}

// A pipeline's order: both forward passes, then both backward passes, which find the weight as it was.
TEST_P(Float8LinearTest, KeptWeightsServeBackwardPassesThatComeLater) {
  Training training({.scaling = Scaling::tensor}), other({.scaling = Scaling::tensor});
  const at::Tensor a = training.batch(1), b = training.batch(2);
  const at::Tensor first = training.loss_of(a, {.is_first_microbatch = true}),
                   second = training.loss_of(b, {.is_first_microbatch = false});
  first.backward();
  second.backward();
  other.loss_of(a).backward();
  other.loss_of(b).backward();
  testing::expect_same(training.state(), other.state());
}

TEST_P(Float8LinearTest, OutsideOfRegionsItIsTorchsLinear) {
  Training training({});
  torch::manual_seed(0);
  const at::Tensor x = training.batch(3);
  const at::Tensor plain = at::linear(x, training.net->first->weight, training.net->first->bias);
  EXPECT_TRUE(testing::same(training.net->first(x), plain));
  {
    const Autocast off({.enabled = false});
    EXPECT_TRUE(testing::same(training.net->first(x), plain));
  }
  {
    const Autocast on;
    {
      const Autocast off({.enabled = false});
      EXPECT_TRUE(testing::same(training.net->first(x), plain));
    }
    EXPECT_FALSE(testing::same(training.net->first(x), plain));
  }
  EXPECT_EQ(Autocast::current(), nullptr);
}

TEST_P(Float8LinearTest, CalibrationNotesAmaxesAndComputesAsBefore) {
  Training training({.amax_history_length = 4});
  const at::Tensor x = training.batch(3);
  const at::Tensor loss = training.loss_of(x, {.enabled = false, .calibrating = true});
  EXPECT_TRUE(testing::same(loss, training.loss_of(x, {.enabled = false})));
  const at::Tensor scale = training.net->named_buffers()["fp8_scale"];
  EXPECT_TRUE(testing::same(scale[0], scale_of(x.abs().max(), c10::kFloat8_e4m3fn, false)));
  EXPECT_TRUE(
      testing::same(scale[1], scale_of(training.net->first->weight.detach().abs().max(), c10::kFloat8_e4m3fn, false)));
  EXPECT_EQ(scale[2].item<float>(), 1.0F) << "gradients come with training";
}

TEST_P(Float8LinearTest, AnEvaluationLeavesScalesAlone) {
  Training training({.amax_history_length = 4});
  (void)training.step(training.batch(1));
  const auto before = testing::clone_all(training.state());
  training.net->eval();
  const at::NoGradGuard no_grad;
  (void)training.loss_of(training.batch(2) * 100);
  testing::expect_same(training.state(), before);
}

// Nothing is made for a backward pass, which wants more of shapes.
TEST_P(Float8LinearTest, AnEvaluationTakesAnyNumberOfRows) {
  for (const auto& [name, recipe] : recipes()) {
    Training training(recipe);
    training.net->eval();
    const at::NoGradGuard no_grad;
    const Autocast region;
    for (const std::int64_t rows : {5, 0}) {
      const at::Tensor y = training.net->forward(randn({rows, training.width}));
      EXPECT_EQ(y.size(0), rows) << name;
      EXPECT_TRUE(at::isfinite(y).all().item<bool>()) << name;
    }
  }
}

TEST_P(Float8LinearTest, FrozenLayersHandTheGradientOn) {
  Training training({.scaling = Scaling::tensor}), all({.scaling = Scaling::tensor});
  for (const at::Tensor& parameter : training.net->first->parameters()) parameter.requires_grad_(false);
  const at::Tensor x = training.batch(1).requires_grad_(), y = training.batch(1).requires_grad_();
  training.loss_of(x).backward();
  all.loss_of(y).backward();
  EXPECT_TRUE(testing::same(x.grad(), y.grad()));
  EXPECT_FALSE(training.net->first->weight.grad().defined());
}

TEST_P(Float8LinearTest, BFloat16AndAutocastGiveTheirTypes) {
  Training training({.amax_history_length = 4});
  training.net->first->to(at::kBFloat16);
  const at::Tensor x = training.batch(1).to(at::kBFloat16).requires_grad_();
  const Autocast region;
  const at::Tensor y = training.net->first(x);
  y.sum().backward();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(training.net->first->weight.grad().scalar_type(), at::kBFloat16);
}

TEST_P(Float8LinearTest, WhatCannotBeDoneIsRefused) {
  Training training({.amax_history_length = 4});
  const auto said = [&](const at::Tensor& x, const RegionOptions& options) {
    return testing::refusal<UsageError>("a call", [&] { (void)training.loss_of(x, options); });
  };
  EXPECT_THAT(testing::refusal<UsageError>("12 tokens",
                                           [&] {
                                             training.loss_of(randn({12, 32})).backward();
                                           }),
              HasSubstr("a product of 8 bits of [32, 12] and [12, 64]: GPUs want multiples of 16"));
  EXPECT_THAT(said(training.batch(1), {.recipe = Recipe{.amax_history_length = 8}}),
              AllOf(HasSubstr("a region with delayed scaling, e4m3 and e5m2, the largest of the last 8 runs a layer "
                              "that was made with"),
                    HasSubstr("convert the model with the region's recipe")));
  EXPECT_THAT(said(training.batch(1), {.is_first_microbatch = false}), HasSubstr("finds no quantised weight"));
  (void)training.loss_of(training.batch(1), {.is_first_microbatch = true});
  {
    const at::NoGradGuard no_grad;
    training.net->first->weight.mul_(2);
  }
  EXPECT_THAT(said(training.batch(1), {.is_first_microbatch = false}),
              HasSubstr("a weight was written since the first microbatch"));
  const at::Tensor early = training.loss_of(training.batch(1), {.is_first_microbatch = true});
  (void)training.loss_of(training.batch(2), {.is_first_microbatch = true});
  EXPECT_THAT(testing::refusal<UsageError>("a backward pass", [&] { early.backward(); }),
              HasSubstr("was replaced by a later first microbatch"));
  const at::Tensor x = training.batch(1).requires_grad_();
  EXPECT_THAT(testing::refusal<UsageError>(
                  "twice", [&] { (void)torch::autograd::grad({training.loss_of(x)}, {x}, {}, true, true); }),
              HasSubstr("differentiated twice"));
  EXPECT_THAT(testing::refusal<UsageError>("shared twice", [&] { share_scales(*training.net, {}); }),
              HasSubstr("share their scales already"));
  torch::nn::Linear plain(16, 16);
  EXPECT_THAT(testing::refusal<UsageError>("none", [&] { share_scales(*plain, {}); }),
              HasSubstr("has no Float8Linear"));
  Float8Linear bare(16, 16);
  const Autocast region;
  EXPECT_THAT(testing::refusal<UsageError>("bare",
                                           [&] {
                                             (void)bare(randn({16, 16}));
                                           }),
              HasSubstr("call fp8::share_scales"));
}

}  // namespace
}  // namespace pianola::fp8::linear_test
