#include <pianola/graph/scope_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/memory_device_test.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

namespace pianola::testing::scope_forecast_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ScopeForecastTest : public MemoryDeviceTest {
 protected:
  enum { kLayers, kModel, kWithoutOptimizer, kWhole };

  // Two layers, a loss outside of the model, and an optimizer that takes scratch.
  struct Training {
    at::Tensor first = ones(4).requires_grad_(), second = ones(4).requires_grad_();
    at::Tensor x = ones(4);
    std::vector<at::Tensor> gradients = {};

    static at::Tensor layer(const std::string& name, const at::Tensor& x, const at::Tensor& weight) {
      RECORD_USER_SCOPE(std::string(kLayerScope) + name);
      return (x * weight).tanh();
    }
    at::Tensor model() const {
      RECORD_USER_SCOPE(std::string(kModelScope) + "net");
      return layer("2", layer("1", x, first), second);
    }
    void operator()() {
      gradients.clear();
      const at::Tensor loss = (model() * 2).sum();
      gradients = torch::autograd::grad({loss}, {first, second});
      RECORD_USER_SCOPE("Optimizer.step#Descent.step");
      const at::NoGradGuard no_grad;
      const at::Tensor scratch = at::empty({64 * kFloats}, device());
      first.sub_(gradients[0]);
      second.sub_(gradients[1]);
    }
  };
};
PIANOLA_ON_EVERY_DEVICE(ScopeForecastTest);

TEST_P(ScopeForecastTest, FourScopesAreToldFromTheLeastToTheMost) {
  Training step;
  const ScopeForecast forecast = predict_scopes([&] { step(); }, device(), {.inputs = {step.x}});
  std::vector<std::string> names;
  std::vector<std::size_t> graphs;
  for (const PredictedScope& one : forecast.scopes) {
    names.push_back(one.name);
    graphs.push_back(one.graphs);
    EXPECT_EQ(one.obstacle, "") << one.name;
    EXPECT_GE(one.pool, one.scratch) << one.name;
    EXPECT_EQ(one.fits.has_value(), device().is_cuda());
  }
  EXPECT_THAT(names,
              ElementsAre("each layer", "forward and backward", "iteration without optimizer", "whole iteration"));
  EXPECT_THAT(graphs, ElementsAre(4U, 2U, 1U, 1U));
}

TEST_P(ScopeForecastTest, TheWholeIterationIsWhatPredictMemoryTells) {
  Training step, other;
  const PredictedScope whole = predict_scopes([&] { step(); }, device()).scopes[kWhole];
  const MemoryForecast alone = predict_memory([&] { other(); }, device());
  EXPECT_EQ(whole.pool, alone.pool);
  EXPECT_EQ(whole.results, alone.left);
  EXPECT_EQ(whole.copied, alone.copied);
  EXPECT_EQ(whole.executable, alone.executable);
}

TEST_P(ScopeForecastTest, WithoutTheOptimizerItsScratchIsNotInThePool) {
  Training step;
  const ScopeForecast forecast = predict_scopes([&] { step(); }, device());
  EXPECT_GE(forecast.scopes[kWhole].pool, 64 * kMiB);
  EXPECT_LT(forecast.scopes[kWithoutOptimizer].pool, 64 * kMiB);
  EXPECT_GE(forecast.scopes[kWithoutOptimizer].results, 8 * kMiB) << "the gradients";
  EXPECT_LT(forecast.scopes[kWithoutOptimizer].results, 9 * kMiB) << "and the loss";
  EXPECT_EQ(forecast.scopes[kWithoutOptimizer].copied, 0U) << "the optimizer alone writes what was there before";
  EXPECT_EQ(forecast.scopes[kWhole].copied, 8 * kMiB);
}

TEST_P(ScopeForecastTest, InputsAreWhatTheCallerGivesAndWhatCodeOutsideMakes) {
  Training step;
  const ScopeForecast forecast = predict_scopes([&] { step(); }, device(), {.inputs = {step.x}});
  EXPECT_EQ(forecast.scopes[kWhole].inputs, 4 * kMiB);
  EXPECT_EQ(forecast.scopes[kWithoutOptimizer].inputs, 4 * kMiB);
  EXPECT_GE(forecast.scopes[kModel].inputs, 8 * kMiB) << "the gradient of its result, too";
  EXPECT_GE(forecast.scopes[kLayers].inputs, forecast.scopes[kModel].inputs + 4 * kMiB)
      << "what the first gives the second";
  EXPECT_EQ(predict_scopes([&] { step(); }, device()).scopes[kWhole].inputs, 0U) << "none was named";
}

TEST_P(ScopeForecastTest, WhatNoScopeNamesIsNotTold) {
  const at::Tensor x = ones(4);
  const ScopeForecast forecast = predict_scopes([&] { (void)(x * 2).sum(); }, device());
  EXPECT_EQ(forecast.scopes[kLayers].obstacle, "no user scope names a layer");
  EXPECT_EQ(forecast.scopes[kWithoutOptimizer].obstacle, "no user scope names an optimizer's step");
  EXPECT_EQ(forecast.scopes[kModel].pool, forecast.scopes[kWhole].pool) << "a forward pass alone";
  EXPECT_EQ(forecast.scopes[kModel].graphs, 1U);
  EXPECT_THAT(forecast.report().to_text(), HasSubstr("each layer: not told: no user scope names a layer"));
}

TEST_P(ScopeForecastTest, LanesAreBoundedByTheirLimit) {
  const auto step = [] {
    at::Tensor x = ones(64);
    for (int i = 0; i < 8; ++i) x = x + 1;
  };
  const LanesForecast lanes = predict_scopes(step, device()).lanes;
  EXPECT_EQ(lanes.lanes, 4);
  EXPECT_LE(lanes.reuse, (9 - 2) * 64 * kMiB) << "nine blocks, of which two are there at a time";
  EXPECT_GE(lanes.reuse, (9 - 2) * 64 * kMiB - by_segments<std::uint64_t>(2, 12 + 2) * kMiB)
      << "the CPU makes tensors of numbers, in a segment of their own; expandable ones have pages of 20 MiB";
  EXPECT_EQ(lanes.workspaces != 0, device().is_cuda());
  EXPECT_EQ(lanes.at_most, lanes.workspaces + lanes.reuse);
  const ScopeForecast limited = predict_scopes(step, device(), {.parallel = {.memory_limit = 100 * kMiB}});
  EXPECT_EQ(limited.lanes.at_most, 100 * kMiB);
  EXPECT_EQ(predict_scopes(step, device(), {.parallel = {.reuse_delay = 0}}).lanes.reuse, 0U);
}

TEST_P(ScopeForecastTest, EachScopeHasAVerdict) {
  Training step;
  const std::string text = predict_scopes([&] { step(); }, device()).report().to_text();
  if (device().is_cuda()) {
    EXPECT_THAT(text, HasSubstr("whole iteration: It fits: a capture takes"));
  } else {
    EXPECT_THAT(text, HasSubstr("whole iteration: Whether it fits is not known"));
  }
}

TEST_P(ScopeForecastTest, RefusesNumbersThatMakeNoSense) {
  const auto nothing = [] {};
  EXPECT_THAT([&] { (void)predict_scopes(nothing, device(), {.warmup = -1}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("warmup must be 0 or more, got -1")));
  EXPECT_THAT([&] { (void)predict_scopes(nothing, device(), {.lanes = 1}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("lanes must be 2 or more, got 1")));
}

TEST_P(ScopeForecastTest, AnEmptyStepTakesNothing) {
  const ScopeForecast forecast = predict_scopes([] {}, device());
  EXPECT_EQ(forecast.scopes[kWhole].pool, 0U);
  EXPECT_EQ(forecast.lanes.reuse, 0U);
}

}  // namespace
}  // namespace pianola::testing::scope_forecast_test
