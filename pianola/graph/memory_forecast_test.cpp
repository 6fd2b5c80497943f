#include <pianola/graph/memory_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/memory_device_test.hpp>
#include <pianola/memory/plan_proof.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace pianola::testing::memory_forecast_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MemoryForecastTest : public MemoryDeviceTest {};
PIANOLA_ON_EVERY_DEVICE(MemoryForecastTest);

TEST_P(MemoryForecastTest, CountsWhatIsInUseAtATimeAndAtTheEnd) {
  at::Tensor kept;
  const MemoryForecast forecast = predict_memory(
      [&] {
        kept.reset();
        at::Tensor scratch = block(30);
        scratch.reset();
        kept = block(4);
        at::Tensor more = block(40);
      },
      device());
  EXPECT_EQ(forecast.blocks, 3U);
  EXPECT_EQ(forecast.operations, 3U);
  EXPECT_EQ(forecast.handed_out, 74 * kMiB);
  EXPECT_EQ(forecast.bound, 44 * kMiB);
  EXPECT_EQ(forecast.planned, 44 * kMiB);
  EXPECT_EQ(forecast.left, 4 * kMiB);
  EXPECT_EQ(forecast.pool, by_segments(30 + 40, 3 * 20) * kMiB)
      << "the 4 MiB lie where the 30 were, and 40 find no room there: but for the rest of an expandable segment";
  EXPECT_THAT(forecast.peak_place, HasSubstr("aten::empty"));
  ASSERT_EQ(forecast.at_peak.size(), 1U) << "of one line";
  EXPECT_EQ(forecast.at_peak[0].blocks, 2U);
  EXPECT_EQ(forecast.at_peak[0].bytes, 44 * kMiB);
}

// On the tape torch's allocator has no pools.
void expect_pool_of_capture(const std::function<void()>& step, c10::Device device, std::uint64_t bytes) {
  if (device.is_cpu()) return;
  Graph graph(device);
  graph.capture(step, {.warmup = 2, .allow_empty = true});
  EXPECT_EQ(graph.info().pool_bytes, bytes);
}

TEST_P(MemoryForecastTest, CountsRequestsAsTorchsAllocatorIsSetToRoundThem) {
  const auto step = [] {
    at::Tensor scratch = block(33);
    scratch.reset();
    scratch = block(39);
  };
  const std::uint64_t as_asked = predict_memory(step, device()).pool;
  EXPECT_EQ(as_asked, by_segments(34 + 40, 40) * kMiB);
  expect_pool_of_capture(step, device(), as_asked);
  const WithAllocatorSettings rounding("roundup_power2_divisions:4", "roundup_power2_divisions:1");
  const std::uint64_t rounded = predict_memory(step, device()).pool;
  EXPECT_EQ(rounded, 40 * kMiB) << "each takes 40";
  expect_pool_of_capture(step, device(), rounded);
}

TEST_P(MemoryForecastTest, CountsPiecesThatTorchsAllocatorIsSetNotToSplit) {
  const auto step = [] {
    at::Tensor scratch = block(40);
    scratch.reset();
    scratch = block(8);
  };
  EXPECT_EQ(predict_memory(step, device()).pool, 40 * kMiB);
  const WithAllocatorSettings whole("max_split_size_mb:32", "max_split_size_mb:17592186044415");
  const std::uint64_t pool = predict_memory(step, device()).pool;
  EXPECT_EQ(pool, by_segments(40 + 20, 40) * kMiB) << "the last piece of an expandable segment is for all";
  expect_pool_of_capture(step, device(), pool);
}

TEST_P(MemoryForecastTest, CountsWhatACaptureCopiesAside) {
  const at::Tensor parameter = at::ones({kFloats}, device());
  const MemoryForecast forecast = predict_memory(
      [&] {
        parameter.narrow(0, 0, 8).add_(1);
        parameter.narrow(0, 8, 8).mul_(0.5);
      },
      device());
  EXPECT_EQ(forecast.copied, kMiB) << "all of it, once";
}

TEST_P(MemoryForecastTest, ItsPlanIsProved) {
  const at::Tensor weight = at::ones({256, 256}, device()).requires_grad_();
  const MemoryForecast forecast = predict_memory(
      [&] {
        at::Tensor hidden = weight;
        for (int i = 0; i < 8; ++i) hidden = at::mm(hidden, weight).relu() * 0.01;
        torch::autograd::grad({hidden.sum()}, {weight});
      },
      device());
  std::vector<memory::Block> lives;
  for (const memory::PicturedBlock& block : forecast.picture.blocks) lives.push_back(block.life);
  EXPECT_EQ(memory::find_flaw(lives, forecast.picture.places), std::nullopt);
  EXPECT_GE(forecast.planned, forecast.bound);
  EXPECT_LE(forecast.planned, forecast.pool);
  EXPECT_THAT(forecast.to_html(), HasSubstr("aten::mm"));
}

TEST_P(MemoryForecastTest, SaysWhetherItFitsWhereThatIsKnown) {
  const MemoryForecast forecast = predict_memory([] { (void)block(1); }, device());
  EXPECT_EQ(forecast.fits().has_value(), on_cuda());
  EXPECT_THAT(forecast.verdict(), HasSubstr(on_cuda() ? "It fits: a capture takes" : "Whether it fits is not known"));
  MemoryForecast large = forecast;
  large.pool = 40ULL << 30U;
  large.free = 30ULL << 30U;
  large.cached = large.returnable = 20ULL << 30U;
  EXPECT_EQ(large.fits(), std::optional(false)) << "a pool has nothing of what torch's allocator holds";
  EXPECT_THAT(large.verdict(), AllOf(HasSubstr("It does not fit yet: a capture takes"),
                                     HasSubstr("torch.cuda.empty_cache() gives 20.0 GiB back")));
  large.free = 41ULL << 30U;
  large.copied = 20ULL << 30U;
  EXPECT_EQ(large.fits(), std::optional(true)) << "copies have";
  large.copied = 30ULL << 30U;
  EXPECT_EQ(large.fits(), std::optional(false));
  EXPECT_THAT(large.verdict(), AllOf(HasSubstr("It does not fit: "), HasSubstr("the driver has 41.0 GiB left")));
}

TEST_P(MemoryForecastTest, AReportSaysAllOfIt) {
  const std::string text = predict_memory([] { (void)block(3); }, device()).report().to_text();
  for (const char* line :
       {"in use at most", "3.0 MiB", "pool, planned", "copied aside by the capture", "aten::empty"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_P(MemoryForecastTest, WhatTheStepThrowsReachesTheCaller) {
  const auto step = [] {
    (void)block(1);
    throw std::out_of_range("the step's own");
  };
  EXPECT_THROW((void)predict_memory(step, device()), std::out_of_range);
  EXPECT_THROW((void)predict_memory(step, device(), 0), std::out_of_range);
}

TEST_P(MemoryForecastTest, IsRefusedInACapture) {
  Graph graph(device());
  const auto step = [] { (void)predict_memory([] {}, device()); };
  EXPECT_THAT([&] { graph.capture(step, {.warmup = 0}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("predict_memory() was called while a capture is open")));
  EXPECT_THAT([] { (void)predict_memory([] {}, device(), -1); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("warmup must be 0 or more")));
}

TEST_P(MemoryForecastTest, ALimitBelowWhatTheInputsTakeIsRefusedBeforeTheStepRuns) {
  const at::Tensor input = at::ones({4 * kFloats}, device()), other = at::ones({8}, device());
  int runs = 0;
  at::Tensor result;
  const auto step = [&] {
    ++runs;
    result = input.narrow(0, 0, 8) + other;
  };
  const std::size_t of_inputs = input.nbytes() + other.nbytes();
  Graph graph(device());
  EXPECT_THAT(
      [&] {
        graph.capture(step, {.warmup = 1, .inputs = {input, other}, .memory_limit = of_inputs - 1});
      },
      ::testing::ThrowsMessage<OutOfMemoryError>(AllOf(HasSubstr("the static inputs of a graph take"),
                                                       HasSubstr("by themselves, and memory_limit is"),
                                                       HasSubstr("fix:   raise memory_limit"), HasSubstr("[PG908]"))));
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(graph.captured());
  graph.capture(step,
                {.warmup = 1, .inputs = {input, other}, .memory_limit = std::max(of_inputs, std::size_t{64} << 20U)});
  graph.replay();
  EXPECT_TRUE(same(result, at::full({8}, 2.0, device())));
}

TEST_P(MemoryForecastTest, ACaptureThatWouldTakeMoreThanItsLimitIsRefused) {
  const at::Tensor parameter = at::ones({kFloats}, device());
  at::Tensor result;
  const auto step = [&] {
    parameter.mul_(2);
    result = at::mm(at::ones({1024, 2048}, device()), at::ones({2048, 1024}, device()));
  };
  const std::uint64_t pool = predict_memory(step, device()).pool;
  const at::Tensor before = parameter.clone();
  Graph graph(device());
  EXPECT_THAT([&] { graph.capture(step, {.warmup = 2, .memory_limit = pool - 1}); },
              ::testing::ThrowsMessage<OutOfMemoryError>(
                  AllOf(HasSubstr("a graph's pool would take"), HasSubstr("nothing was recorded"),
                        HasSubstr("expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF"))));
  EXPECT_TRUE(same(parameter, before)) << "what the warm-up wrote is put back";
  EXPECT_FALSE(graph.captured());
  graph.capture(step, {.warmup = 2, .memory_limit = pool});  // the first run on a stream makes cuBLAS's workspace
  graph.replay();
  EXPECT_TRUE(same(parameter, before * 2));
  const at::Tensor large = at::ones({32 * kFloats}, device());
  Graph writing(device());
  writing.capture([&] { large.add_(1); },
                  {.warmup = 1, .memory_limit = 2 * kMiB});  // the capture's own copy does not count
  Graph other(device());
  EXPECT_THAT([&] { other.capture(step, {.warmup = 0, .memory_limit = pool}); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("memory_limit needs a warm-up run")));
}

}  // namespace
}  // namespace pianola::testing::memory_forecast_test
