#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/allocator_settings.hpp>
#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/memory_forecast.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/no_more_memory.hpp>
#include <pianola/memory/allocator_model.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace pianola::testing::planned_blocks_test {
namespace {

constexpr std::int64_t kFloats = 1 << 18;  // a MiB
constexpr std::size_t kMiB = 1U << 20U;

/// Blocks that torch's allocator does not know, in all that torch does with blocks.
class PlannedBlocksTest : public DeviceTest {
 protected:
  // With one eager run nobody sees that the recording does otherwise.
  static CaptureOptions planned() { return {.warmup = 1, .plan_memory = true}; }
  static at::Tensor full(std::int64_t mib, double value) { return at::full({mib * kFloats}, value, device()); }
  static bool all_are(const at::Tensor& tensor, double value) { return same(tensor, at::full_like(tensor, value)); }

  // Each block is larger than what was freed before: torch's allocator reuses none.
  void grow() {
    result = full(1, 0);
    for (std::int64_t mib = 30; mib <= 150; mib += 30) {
      const at::Tensor scratch = full(mib, static_cast<double>(mib));
      result += scratch.narrow(0, scratch.size(0) - kFloats, kFloats);
    }
  }
  static constexpr double kGrown = 30 + 60 + 90 + 120 + 150;

  at::Tensor result;
};
INSTANTIATE_TEST_SUITE_P(On, PlannedBlocksTest, ::testing::Values("cuda"), device_name);

TEST_P(PlannedBlocksTest, APoolTakesLittleMoreThanIsInUseAtATime) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  const MemoryForecast forecast = predict_memory([&] { grow(); }, device());
  Graph plain(device());
  plain.capture([&] { grow(); }, {.warmup = 2});
  const std::size_t unplanned = plain.info().pool_bytes;
  plain.reset();
  Graph graph(device());
  graph.capture([&] { grow(); }, planned());
  const std::size_t pool = graph.info().pool_bytes;
  EXPECT_LE(pool, forecast.bound / 50 + forecast.bound + 2 * kMiB);
  EXPECT_LT(pool, unplanned / 2);
  EXPECT_EQ(graph.info().planned_bytes, forecast.planned);
  for (int replay = 0; replay < 3; ++replay) {
    result.zero_();
    graph.replay();
    EXPECT_TRUE(all_are(result, kGrown));
  }
}

TEST_P(PlannedBlocksTest, AResultOutlivesItsGraph) {
  Graph graph(device());
  graph.capture([&] { grow(); }, planned());
  graph.replay();
  const at::Tensor kept = result;
  result.reset();
  graph.reset();
  std::vector<at::Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(full(40, 7));
  Graph next(device());
  next.capture([&] { grow(); }, planned());
  next.replay();
  EXPECT_TRUE(all_are(kept, kGrown));
}

TEST_P(PlannedBlocksTest, AllMemoryGoesBack) {
  const auto held = [] {
    c10::cuda::CUDACachingAllocator::emptyCache();
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  const auto once = [&] {
    Graph graph(device());
    graph.capture([&] { grow(); }, planned());
    graph.replay();
    synchronize();
    result.reset();
  };
  once();
  const auto before = held();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_LE(held(), before);
}

// A block that lives on where the plan has another one.
TEST_P(PlannedBlocksTest, ABlockThatTheRecordingKeepsIsNotOverwritten) {
  at::Tensor kept;
  const auto step = [&] {
    at::Tensor first = full(8, 1);
    if (is_recording()) kept = first;
    first.reset();
    result = full(8, 2) + full(8, 3);
  };
  Graph graph(device());
  graph.capture(step, planned());
  graph.replay();
  EXPECT_TRUE(all_are(kept, 1));
  EXPECT_TRUE(all_are(result, 5));
}

TEST_P(PlannedBlocksTest, WhatThePlanDoesNotForeseeLiesOutside) {
  at::Tensor more;
  const auto step = [&] {
    if (is_recording()) more = full(24, 4);
    grow();
  };
  Graph graph(device());
  graph.capture(step, planned());
  EXPECT_GE(graph.info().pool_bytes, graph.info().planned_bytes + 24 * kMiB);
  graph.replay();
  EXPECT_TRUE(all_are(more, 4));
  EXPECT_TRUE(all_are(result, kGrown));
}

TEST_P(PlannedBlocksTest, WhatTheRecordingMayDoOtherwiseIsForeseen) {
  at::Tensor more;
  int calls = 0;
  const auto step = [&] {
    ++calls;
    if (is_recording()) more = full(24, 4);
    grow();
  };
  Graph graph(device());
  graph.capture(step, {.warmup = 2, .plan_memory = true, .accept_capture_path = true});
  EXPECT_EQ(calls, 2 + 2) << "it is recorded ahead, and recorded";
  const std::size_t region = memory::pool_bytes(std::vector<memory::Block>{{.bytes = graph.info().planned_bytes}},
                                                graph::allocator_settings());
  EXPECT_LE(region, graph.info().planned_bytes + by_segments<std::size_t>(2, 20) * kMiB) << "in whole pages";
  EXPECT_LE(graph.info().pool_bytes, region + 2 * kMiB);
  graph.replay();
  EXPECT_TRUE(all_are(more, 4));
  EXPECT_TRUE(all_are(result, kGrown));
}

// Behind what the first recording hands out there is next to no memory, and torch keeps workspaces.
TEST_P(PlannedBlocksTest, AWorkspaceOfTheFirstRecordingIsMadeAnew) {
  const at::Tensor x = at::rand({256, 256}, device());
  const at::Tensor expected = at::mm(x, x);  // elsewhere: no recording loads the library
  at::Tensor product;
  std::vector<std::size_t> workspaces;  // that each recording finds
  const auto step = [&] {
    grow();
    if (!is_recording()) return;
    workspaces.push_back(graph::BlasWorkspaces::spans_on(c10::cuda::getCurrentCUDAStream().stream()).size());
    product = at::mm(x, x);
  };
  Graph graph(device());
  graph.capture(step, {.warmup = 2, .plan_memory = true, .accept_capture_path = true});
  EXPECT_THAT(workspaces, ::testing::ElementsAre(0U, 0U));
  graph.replay();
  EXPECT_TRUE(same(product, expected));
}

TEST_P(PlannedBlocksTest, ABlockThatAnotherStreamUsesIsNotReused) {
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  at::Tensor sum;
  const auto step = [&] {
    const c10::cuda::CUDAStream main = c10::cuda::getCurrentCUDAStream();
    at::Tensor first = full(8, 1);
    at::cuda::CUDAEvent made, used;
    made.record(main);
    made.block(side);
    {
      const c10::cuda::CUDAStreamGuard on_side(side);
      for (int i = 0; i < 50; ++i) first.add_(1);
      sum = first * 2;
    }
    c10::cuda::CUDACachingAllocator::recordStream(first.storage().data_ptr(), side);
    first.reset();
    result = full(8, 5);  // nothing orders it behind the other stream
    used.record(side);
    used.block(main);
  };
  Graph graph(device());
  graph.capture(step, planned());
  for (int replay = 0; replay < 5; ++replay) {
    graph.replay();
    EXPECT_TRUE(all_are(sum, 102));
    EXPECT_TRUE(all_are(result, 5));
  }
}

TEST_P(PlannedBlocksTest, TorchKnowsWhatToDoWithABlock) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  Graph graph(device());
  graph.capture([&] { grow(); }, planned());
  graph.replay();
  std::size_t bytes = 0;
  const auto* const base =
      static_cast<char*>(c10::cuda::CUDACachingAllocator::getBaseAllocation(result.mutable_data_ptr(), &bytes));
  const auto* const begin = static_cast<char*>(result.mutable_data_ptr());
  EXPECT_TRUE(base <= begin && begin + result.nbytes() <= base + bytes);
  const auto handle = c10::cuda::CUDACachingAllocator::shareIpcHandle(result.mutable_data_ptr());
  EXPECT_FALSE(handle.handle.empty());
  result.resize_({4 * kFloats});  // a new block, of torch's
  EXPECT_TRUE(all_are(result.narrow(0, 0, kFloats), kGrown));
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  c10::cuda::CUDACachingAllocator::recordStream(result.storage().data_ptr(), side);
}

// Torch's allocator tells of the blocks of all threads.
TEST_P(PlannedBlocksTest, WhatAnotherThreadAsksForIsNotPlanned) {
  const MemoryForecast forecast = predict_memory([&] { grow(); }, device());
  const auto other_thread = [] {
    const c10::cuda::CUDAGuard on(device());
    (void)full(1024, 7);
  };
  {
    Graph graph(device());
    graph.capture(
        [&] {
          if (!is_recording()) std::thread(other_thread).join();
          grow();
        },
        planned());
    EXPECT_EQ(graph.info().planned_bytes, forecast.planned);
    EXPECT_LT(graph.info().pool_bytes, 2 * forecast.planned);  // nothing lies outside
    graph.replay();
  }
  const at::Tensor kept = std::move(result);
  for (int round = 0; round < 3; ++round) {
    Graph graph(device());
    graph.capture([&] { grow(); }, planned());
    graph.replay();
  }
  EXPECT_TRUE(all_are(kept, kGrown));
}

TEST_P(PlannedBlocksTest, TwoThreadsPlanAtTheSameTime) {
  const auto step = [](at::Tensor& sum, std::int64_t most, double value) {
    sum = full(4, 0);
    for (std::int64_t mib = 1; mib < most; ++mib) sum += full(mib, value).narrow(0, 0, kFloats)[0];
  };
  const auto forecast_of = [&](std::int64_t most) {
    at::Tensor sum;
    return predict_memory([&] { step(sum, most, 1); }, device()).planned;
  };
  const std::size_t planned_of_few = forecast_of(20), planned_of_many = forecast_of(30);
  const auto run = [&](double value) {
    const c10::cuda::CUDAGuard on(device());
    const std::int64_t most = value == 1 ? 20 : 30;
    for (int round = 0; round < 5; ++round) {
      at::Tensor sum;
      Graph graph(device());
      graph.capture([&] { step(sum, most, value); },
                    {.warmup = 2, .mode = CaptureMode::thread_local_, .plan_memory = true});
      graph.replay();
      EXPECT_TRUE(all_are(sum, static_cast<double>(most - 1) * value));
      EXPECT_EQ(graph.info().planned_bytes, value == 1 ? planned_of_few : planned_of_many);  // by its own blocks
    }
  };
  std::thread one(run, 1), two(run, 2);
  one.join();
  two.join();
}

TEST_P(PlannedBlocksTest, WithoutRoomForTheRegionACaptureIsRefusedOrFindsItsOwn) {
  grow();
  result.reset();
  Graph graph(device());
  {
    const NoMoreMemory full_device;
    try {
      graph.capture([&] { grow(); }, planned());
    } catch (const c10::OutOfMemoryError&) {
    } catch (const OutOfMemoryError&) {
    }
  }
  if (!graph.captured()) graph.capture([&] { grow(); }, planned());
  graph.replay();
  EXPECT_TRUE(all_are(result, kGrown));
}

}  // namespace
}  // namespace pianola::testing::planned_blocks_test
