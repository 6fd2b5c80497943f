#include <pianola/graph/cuda/pool_reservation.hpp>

#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pianola::testing::pool_reservation_test {
namespace {

class PoolReservationTest : public DeviceTest {
 protected:
  static at::Tensor floats(std::int64_t count) { return at::full({count}, 1.0, device()); }
  static ByteSpan span_of(const at::Tensor& tensor) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    return {.begin = begin, .end = begin + tensor.nbytes()};
  }
  static std::vector<ByteSpan> used_of(const GraphPool& pool) {
    auto& state = static_cast<graph::CudaPool&>(*GraphPoolRef(pool).state());
    return graph::PoolTurn(state.turns()).ledger().allocated();
  }
};
INSTANTIATE_TEST_SUITE_P(On, PoolReservationTest, ::testing::Values("cuda"), device_name);

// Small scratch in many segments, whose untouched ends are what torch would rather give.
TEST_P(PoolReservationTest, NoResultLiesWhereEarlierGraphsWrite) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(std::to_string(seed));
    std::mt19937 random(seed);
    const auto some = [&](int least, int most) {
      return std::uniform_int_distribution<std::int64_t>(least, most)(random);
    };
    GraphPool pool(device());
    std::deque<Graph> graphs;
    std::vector<at::Tensor> results;
    for (int i = 0; i < 8; ++i) {
      const std::int64_t scratch = some(1, 30), size = some(64, seed % 3 == 0   ? 40'000
                                                                : seed % 3 == 1 ? 700'000
                                                                                : 4'000'000);
      graphs.emplace_back(device()).capture(
          [&] {
            std::vector<at::Tensor> all;
            for (std::int64_t k = 0; k < scratch; ++k) all.push_back(floats(k % 4 == 3 ? some(1, 3000) : size));
            results.push_back(all.back().narrow(0, 0, 16).clone());
          },
          {.warmup = 0, .pool = pool});
    }
    const std::vector<ByteSpan> used = used_of(pool);
    const std::shared_ptr<void> reservation = GraphPoolRef(pool).state()->reserve_used_memory();
    std::vector<at::Tensor> late;
    Graph last(device());
    last.capture(
        [&] {
          for (int k = 0; k < 60; ++k) late.push_back(floats(some(16, k % 3 == 0 ? 600'000 : 5'000)));
        },
        {.warmup = 0, .pool = pool});
    for (const at::Tensor& result : late) {
      const ByteSpan span = span_of(result);
      ASSERT_TRUE(std::ranges::none_of(used, [&](const ByteSpan& one) { return one.overlaps(span); })) << span.size();
    }
  }
}

TEST_P(PoolReservationTest, WhatItHeldIsFreeAgainWhenItEnds) {
  const GraphPool pool(device());
  Graph first(device()), second(device());
  const auto step = [] { (void)(floats(100'000) + floats(100'000)).sum(); };
  first.capture(step, {.warmup = 1, .pool = pool});
  const std::size_t bytes = pool.bytes();
  (void)GraphPoolRef(pool).state()->reserve_used_memory();
  second.capture(step, {.warmup = 1, .pool = pool});
  EXPECT_EQ(pool.bytes(), bytes) << "scratch on scratch";
}

TEST_P(PoolReservationTest, HoldsWhileExpandableSegmentsAreSwitchedOff) {
  const GraphPool pool(device());
  Graph first(device()), last(device());
  std::optional<WithExpandableSegments> expandable(std::in_place);
  first.capture([] { (void)(floats(2'000'000) + floats(2'000'000)).sum(); }, {.warmup = 1, .pool = pool});
  expandable.reset();
  if (c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) GTEST_SKIP() << "they are on";
  const std::vector<ByteSpan> used = used_of(pool);
  ASSERT_FALSE(used.empty());
  const std::shared_ptr<void> reservation = GraphPoolRef(pool).state()->reserve_used_memory();
  at::Tensor late;
  last.capture([&] { late = floats(2'000'000); }, {.warmup = 0, .pool = pool});
  const ByteSpan span = span_of(late);
  EXPECT_TRUE(std::ranges::none_of(used, [&](const ByteSpan& one) { return one.overlaps(span); }));
}

}  // namespace
}  // namespace pianola::testing::pool_reservation_test
