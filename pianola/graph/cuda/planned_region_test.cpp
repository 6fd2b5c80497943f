#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/no_more_memory.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pianola::testing::planned_region_test {
namespace {

constexpr std::int64_t kFloats = 1 << 18;  // a MiB
constexpr std::size_t kMiB = 1U << 20U;

/// What torch's allocator and the driver say of a region that grows.
class PlannedRegionTest : public DeviceTest {
 protected:
  static at::Tensor full(std::int64_t mib, double value) { return at::full({mib * kFloats}, value, device()); }
  static bool all_are(const at::Tensor& tensor, double value) { return same(tensor, at::full_like(tensor, value)); }
  static GraphPool make_pool() { return {device(), {.can_sleep = true, .plan_memory = true}}; }
  void step(std::int64_t mib) { out.copy_((full(mib, 1) + full(mib, 2)).narrow(0, 0, kFloats)); }
  void capture(Graph& graph, const GraphPool& pool, std::int64_t mib) {
    graph.capture([this, mib] { step(mib); }, {.warmup = 1, .pool = pool});
  }
  void expect_right(Graph& graph) {
    out.zero_();
    graph.replay();
    EXPECT_TRUE(all_are(out, 3));
  }
  static std::int64_t held() {
    synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  }

  at::Tensor out;

  void SetUp() override {
    DeviceTest::SetUp();
    PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
    if (!IsSkipped() && !HasFatalFailure()) out = at::full({kFloats}, 0.0, device());
  }
};
INSTANTIATE_TEST_SUITE_P(On, PlannedRegionTest, ::testing::Values("cuda"), device_name);

TEST_P(PlannedRegionTest, GrowsBehindItsEndAndOlderGraphsStayValid) {
  const GraphPool pool = make_pool();
  std::deque<Graph> graphs;
  for (const std::int64_t mib : {4, 12, 40, 8, 100}) {
    capture(graphs.emplace_back(device()), pool, mib);
    EXPECT_LE(pool.bytes(), graphs.back().info().planned_bytes + 2 * kMiB) << "all of the pool is the region";
    for (Graph& graph : graphs) expect_right(graph);
  }
  EXPECT_GE(pool.bytes(), 300 * kMiB);
  EXPECT_LE(pool.bytes(), 312 * kMiB);
}

TEST_P(PlannedRegionTest, ABlockReachesOverTheOldEnd) {
  const GraphPool pool = make_pool();
  Graph small(device()), large(device());
  capture(small, pool, 5);
  at::Tensor result;
  large.capture([&] { result = full(64, 7); }, {.warmup = 1, .pool = pool});
  large.replay();
  EXPECT_TRUE(all_are(result, 7));
  std::size_t bytes = 0;
  const auto* const base =
      static_cast<char*>(c10::cuda::CUDACachingAllocator::getBaseAllocation(result.mutable_data_ptr(), &bytes));
  const auto* const begin = static_cast<char*>(result.mutable_data_ptr());
  EXPECT_TRUE(base <= begin && begin + result.nbytes() <= base + bytes);
  c10::cuda::CUDACachingAllocator::recordStream(result.storage().data_ptr(), c10::cuda::getStreamFromPool());
  EXPECT_TRUE(all_are(result.clone(), 7));
}

// A result that reaches over the end of a segment, too.
TEST_P(PlannedRegionTest, WhatIsHeldSleepsInPieces) {
  GraphPool pool = make_pool();
  Graph small(device()), large(device());
  capture(small, pool, 5);
  at::Tensor result;
  large.capture([&] { result = full(64, 7); }, {.warmup = 1, .pool = pool});
  large.replay();
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(pool.suspend(), 64 * kMiB);
    pool.resume();
    EXPECT_TRUE(all_are(result, 7));
    expect_right(small);  // whose scratch is where the result lies
    large.replay();
  }
}

// What no plan foresees lies elsewhere, and the region grows all the same; also where torch has as much free memory in the pool.
TEST_P(PlannedRegionTest, OtherMemoryOfThePoolIsNotInItsWay) {
  const GraphPool pool = make_pool();
  std::deque<Graph> graphs;
  for (const std::int64_t mib : {4, 12, 24, 48}) {
    at::Tensor more;
    Graph& graph = graphs.emplace_back(device());
    graph.capture(
        [&, mib] {
          if (is_recording()) more = full(60, 4);
          step(mib);
        },
        {.warmup = 1, .pool = pool});
    graph.replay();
    EXPECT_TRUE(all_are(more, 4));
    more.reset();
    for (Graph& one : graphs) expect_right(one);
  }
  EXPECT_LE(graphs.front().info().planned_bytes, 3 * 48 * kMiB + 12 * kMiB);
  EXPECT_EQ(graphs.front().info().planned_bytes, graphs.back().info().planned_bytes);
}

TEST_P(PlannedRegionTest, WithoutRoomToGrowNothingIsLost) {
  const GraphPool pool = make_pool();
  Graph small(device()), large(device());
  capture(small, pool, 20);
  const std::size_t bytes = small.info().planned_bytes;
  step(150);
  {
    const NoMoreMemory full_device;
    try {
      capture(large, pool, 150);
    } catch (const c10::OutOfMemoryError&) {
    } catch (const OutOfMemoryError&) {
    }
    EXPECT_EQ(small.info().planned_bytes, bytes);
  }
  expect_right(small);
  large.reset();
  capture(large, pool, 150);
  EXPECT_GE(large.info().planned_bytes, 450 * kMiB);
  expect_right(large);
  expect_right(small);
}

TEST_P(PlannedRegionTest, AllMemoryGoesBack) {
  const auto once = [&] {
    const GraphPool pool = make_pool();
    std::deque<Graph> graphs;
    for (const std::int64_t mib : {4, 12, 40}) {
      capture(graphs.emplace_back(device()), pool, mib);
      graphs.back().replay();
    }
  };
  once();
  const auto before = held();
  for (int i = 0; i < 20; ++i) once();
  EXPECT_LE(held(), before);
}

TEST_P(PlannedRegionTest, ABlockThatAnotherStreamUsesKeepsItsBytes) {
  const GraphPool pool = make_pool();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  at::Tensor first, second;
  Graph one(device()), two(device());
  one.capture([&] { first = full(8, 1); }, {.warmup = 1, .pool = pool});
  const void* const address = first.data_ptr();
  c10::cuda::CUDACachingAllocator::recordStream(first.storage().data_ptr(), side);
  first.reset();
  two.capture([&] { second = full(8, 2); }, {.warmup = 1, .pool = pool});
  EXPECT_NE(second.data_ptr(), address);
  one.replay();
  two.replay();
  EXPECT_TRUE(all_are(second, 2));
}

TEST_P(PlannedRegionTest, ABlockThatItsOwnGraphUsesOnAnotherStreamIsFreeForOtherGraphs) {
  const GraphPool pool = make_pool();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  std::size_t bytes = 0;
  for (int round = 0; round < 6; ++round) {
    Graph graph(device());
    graph.capture(
        [&] {
          const at::Tensor scratch = full(8, 3);
          c10::cuda::CUDACachingAllocator::recordStream(scratch.storage().data_ptr(), side);
          out.copy_(scratch.narrow(0, 0, kFloats));
        },
        {.warmup = 1, .pool = pool});
    if (round == 0) bytes = pool.bytes();
    expect_right(graph);
  }
  EXPECT_EQ(pool.bytes(), bytes);
}

TEST_P(PlannedRegionTest, WhatAFailedCapturePlannedInIsHeldByNobody) {
  const GraphPool pool = make_pool();
  Graph graph(device());
  const auto fail = [&] {
    step(40);
    if (is_recording()) throw std::runtime_error("the step's own");
  };
  EXPECT_THROW(graph.capture(fail, {.warmup = 1, .pool = pool}), std::runtime_error);
  EXPECT_EQ(GraphPoolRef(pool).state()->memory().held, 0U) << "torch has it, for whatever is captured next";
  capture(graph, pool, 12);
  expect_right(graph);
}

// Each thread has another stream to capture on.
TEST_P(PlannedRegionTest, ThreadsCaptureIntoOneRegion) {
  const GraphPool pool = make_pool();
  std::deque<Graph> graphs;
  for (const std::int64_t mib : {4, 12, 40}) {
    Graph& graph = graphs.emplace_back(device());
    std::thread([&, mib] {
      const c10::cuda::CUDAGuard on(device());
      capture(graph, pool, mib);
    }).join();
  }
  for (Graph& graph : graphs) expect_right(graph);
  EXPECT_LE(pool.bytes(), 132 * kMiB);
}

// Captures as those of a cache, whose results are to survive each other's replays.
class ResultsApartTest : public PlannedRegionTest {
 protected:
  static std::shared_ptr<void> keep_results_apart(const GraphPool& pool) {
    return GraphPoolRef(pool).state()->reserve_for_results();
  }
  // Two blocks of scratch, and one that stays.
  static at::Tensor make(std::int64_t mib, double value) {
    return (full(mib, value) + full(mib, 1)).narrow(0, 0, kFloats) * 2;
  }
};
INSTANTIATE_TEST_SUITE_P(On, ResultsApartTest, ::testing::Values("cuda"), device_name);

TEST_P(ResultsApartTest, ABankTakesTheLargestScratchAndAllResults) {
  const std::vector<std::vector<std::int64_t>> orders = {
      {4, 8, 16, 32, 64, 100}, {100, 64, 32, 16, 8, 4}, {16, 100, 4, 64, 8, 32}};
  for (const std::vector<std::int64_t>& sizes : orders) {
    const GraphPool pool = make_pool();
    std::vector<at::Tensor> results(sizes.size());
    std::deque<Graph> graphs;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::shared_ptr<void> apart = keep_results_apart(pool);
      graphs.emplace_back(device()).capture([&, i] { results[i] = make(sizes[i], static_cast<double>(i)); },
                                            {.warmup = 1, .pool = pool});
    }
    EXPECT_LE(pool.bytes(), 300 * kMiB + sizes.size() * kMiB + 24 * kMiB);
    std::mt19937 random(4);
    for (Graph& graph : graphs) graph.replay();
    for (int step = 0; step < 30; ++step) {
      const std::size_t now = random() % sizes.size();
      results[now].zero_();
      graphs[now].replay();
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        ASSERT_TRUE(all_are(results[i], 2 * (static_cast<double>(i) + 1))) << "result " << i << " after graph " << now;
      }
    }
  }
}

TEST_P(ResultsApartTest, AResultThatIsLetGoIsNobodysScratch) {
  const GraphPool pool = make_pool();
  at::Tensor made, read;
  Graph maker(device()), reader(device()), other(device());
  const auto apart = keep_results_apart(pool);
  maker.capture([&] { made = full(8, 2); }, {.warmup = 1, .pool = pool});
  reader.capture([&] { read = made + 1; }, {.warmup = 1, .pool = pool});
  made.reset();
  capture(other, pool, 8);
  for (int i = 0; i < 3; ++i) {
    maker.replay();
    expect_right(other);
    reader.replay();
    EXPECT_TRUE(all_are(read, 3));
  }
}

TEST_P(ResultsApartTest, ARecordingThatKeepsScratchIsRefused) {
  const GraphPool pool = make_pool();
  Graph first(device()), second(device());
  capture(first, pool, 16);
  at::Tensor kept;
  const auto step = [&] {
    at::Tensor scratch = full(16, 5);
    if (is_recording()) kept = scratch;
    scratch.reset();
    out.copy_(make(16, 5));
  };
  const CaptureOptions options = {.warmup = 1, .pool = pool};
  {
    const auto apart = keep_results_apart(pool);
    EXPECT_THAT([&] { second.capture(step, options); },
                ::testing::ThrowsMessage<CaptureError>(::testing::HasSubstr("had let go of in the run before")));
  }
  kept.reset();
  const auto reservation = GraphPoolRef(pool).state()->reserve_used_memory();
  second.capture(step, options);
  second.replay();
  expect_right(first);
  EXPECT_TRUE(all_are(kept, 5));
}

TEST_P(ResultsApartTest, BetweenPiecesOfAReplayOtherThreadsAreRefused) {
  const GraphPool pool = make_pool();
  Graph graph(device());
  capture(graph, pool, 4);
  const auto replay_on_a_thread = [&] {
    std::string error;
    std::thread([&] {
      const c10::cuda::CUDAGuard on(device());
      try {
        graph.replay();
      } catch (const UsageError& refused) {
        error = refused.what();
      }
    }).join();
    return error;
  };
  {
    const PoolState::InPieces pieces(*GraphPoolRef(pool).state());
    const PoolState::InPieces more(*GraphPoolRef(pool).state());
    expect_right(graph);
    EXPECT_THAT(replay_on_a_thread(), ::testing::HasSubstr("between two parts of a replay"));
  }
  EXPECT_EQ(replay_on_a_thread(), "");
  expect_right(graph);
}

}  // namespace
}  // namespace pianola::testing::planned_region_test
