#include <pianola/graph/bucket_forecast.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/memory_device_test.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace pianola::testing::bucket_forecast_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class BucketForecastTest : public MemoryDeviceTest {
 protected:
  // With expandable segments pages of 20 MiB are in use, and each graph has a region of its own.
  static std::uint64_t mib(std::uint64_t fixed, std::uint64_t expandable) {
    return by_segments(fixed, expandable) * kMiB;
  }
};
PIANOLA_ON_EVERY_DEVICE(BucketForecastTest);

TEST_P(BucketForecastTest, WhatAllFreeIsThereOnce) {
  constexpr std::array<std::int64_t, 3> kSizes = {10, 40, 20};
  const BucketForecast set =
      predict_buckets([&](std::size_t bucket) { (void)block(kSizes[bucket]); }, {"small", "large", "middle"}, device());
  ASSERT_EQ(set.buckets.size(), 3U);
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    EXPECT_EQ(set.buckets[i].bound, static_cast<std::uint64_t>(kSizes[i]) * kMiB) << i;
  }
  EXPECT_EQ(set.pools, mib(10 + 40 + 20, 20 + 40 + 20));
  EXPECT_EQ(set.shared, mib(40, 10 + 40 + 20 + 10));
}

TEST_P(BucketForecastTest, InputsThatTheGraphsShareAreCountedOnce) {
  const at::Tensor small = block(1), large = block(3), labels = at::zeros({100}, device());
  const auto step = [](std::size_t) { (void)block(2); };
  const BucketForecast set = predict_buckets(step, {"small", "large"}, device(), 1, {{small, labels}, {large, labels}});
  EXPECT_EQ(set.inputs, 3 * kMiB + 512);
  EXPECT_THAT(set.report().to_text(), HasSubstr("static inputs, shared"));
  EXPECT_EQ(predict_buckets(step, {"small", "large"}, device()).inputs, 0U) << "none was named";
}

TEST_P(BucketForecastTest, WhatIsKeptOfEachLiesBesideTheOthers) {
  std::array<at::Tensor, 3> kept;
  const BucketForecast set = predict_buckets(
      [&](std::size_t bucket) {
        const at::Tensor scratch = block(30);
        kept[bucket] = block(12);
      },
      {"0", "1", "2"}, device());
  EXPECT_EQ(set.buckets[1].left, 12 * kMiB);
  EXPECT_EQ(set.shared, mib(3 * 12 + 30, 3 * (12 + 30) + 14));
  EXPECT_EQ(set.pools, mib(3 * (12 + 30), 3 * (12 + 30 + 18)));
}

TEST_P(BucketForecastTest, WhatTheNextOneReplacesIsKeptTwiceAtMost) {
  at::Tensor gradient;
  const BucketForecast set = predict_buckets(
      [&](std::size_t /*bucket*/) {
        gradient.reset();
        const at::Tensor scratch = block(30);
        gradient = block(12);
      },
      {"0", "1", "2", "3", "4", "5"}, device());
  EXPECT_EQ(set.shared, mib(2 * 12 + 30, 6 * (12 + 30) + 8));
}

TEST_P(BucketForecastTest, IsWhatCapturesThenTake) {
  const at::Tensor x = at::ones({8 * kFloats}, device()), out = at::zeros({8 * kFloats}, device());
  std::array<at::Tensor, 4> kept;
  const auto step = [&](std::size_t bucket) {
    const std::int64_t floats = static_cast<std::int64_t>(bucket + 1) * 2 * kFloats;
    const at::Tensor hidden = x.narrow(0, 0, floats).mul(x.narrow(0, 0, floats)).relu();
    out.narrow(0, 0, floats).copy_(hidden.sqrt());
    kept[bucket] = hidden.narrow(0, 0, kFloats / 2).clone();
  };
  const BucketForecast set = predict_buckets(step, {"2", "4", "6", "8"}, device());
  EXPECT_EQ(set.copied, 8 * kMiB) << "once";
  if (!on_cuda()) return;  // the tape keeps all results
  const GraphPool pool(device(), {.plan_memory = true});
  std::vector<Graph> graphs;
  for (std::size_t bucket = 0; bucket < kept.size(); ++bucket) {
    graphs.emplace_back(device()).capture([&, bucket] { step(bucket); }, {.warmup = 1, .pool = pool});
  }
  EXPECT_LE(pool.bytes(), set.shared + 4 * kMiB);
  EXPECT_LE(set.shared, pool.bytes() + 4 * kMiB);
}

TEST_P(BucketForecastTest, SaysWhetherTheyFitTogetherAndApart) {
  BucketForecast set = predict_buckets([](std::size_t /*bucket*/) { (void)block(1); }, {"one"}, device());
  EXPECT_EQ(set.fits().has_value(), on_cuda());
  EXPECT_THAT(set.verdict(), HasSubstr(on_cuda() ? "They fit: " : "Whether they fit is not known"));
  set.shared = 20ULL << 30U;
  set.pools = 50ULL << 30U;
  set.copied = 1ULL << 30U;
  set.free = 60ULL << 30U;
  set.cached = set.returnable = 0;
  EXPECT_EQ(set.fits(), std::optional(true));
  EXPECT_EQ(set.fits_apart(), std::optional(true));
  EXPECT_THAT(set.verdict(), AllOf(HasSubstr("They fit: with one pool that plans, the graphs take 20.0 GiB"),
                                   Not(HasSubstr("pools of their own"))));
  set.free = 30ULL << 30U;
  EXPECT_EQ(set.fits_apart(), std::optional(false));
  EXPECT_THAT(set.verdict(), HasSubstr("With pools of their own they would not."));
  set.free = 10ULL << 30U;
  EXPECT_EQ(set.fits(), std::optional(false));
  EXPECT_THAT(set.verdict(), HasSubstr("They do not fit: "));
  set.cached = set.returnable = 20ULL << 30U;
  EXPECT_THAT(set.verdict(), HasSubstr("They do not fit yet: "));
}

TEST_P(BucketForecastTest, AReportHasALineForEach) {
  const std::string text =
      predict_buckets([](std::size_t /*bucket*/) { (void)block(3); }, {"short", "long"}, device()).report().to_text();
  for (const char* part : {"one pool that plans", "pools of their own", "short", "long", "3.0 MiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_P(BucketForecastTest, RefusesWhatItCannotTell) {
  const auto step = [](std::size_t /*bucket*/) {};
  EXPECT_THAT([&] { (void)predict_buckets(step, {}, device()); },
              ThrowsMessage<UsageError>(HasSubstr("there are no buckets")));
  EXPECT_THAT([&] { (void)predict_buckets(step, {"one"}, device(), -1); },
              ThrowsMessage<UsageError>(HasSubstr("warmup must be 0 or more")));
  Graph graph(device());
  EXPECT_THAT([&] { graph.capture([&] { (void)predict_buckets(step, {"one"}, device()); }, {.warmup = 0}); },
              ThrowsMessage<UsageError>(HasSubstr("predict_buckets() was called while a capture is open")));
  const auto fails = [](std::size_t bucket) {
    if (bucket == 1) throw std::out_of_range("the step's own");
  };
  EXPECT_THROW((void)predict_buckets(fails, {"0", "1"}, device()), std::out_of_range);
}

}  // namespace
}  // namespace pianola::testing::bucket_forecast_test
