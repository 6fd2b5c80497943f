#include <pianola/graph/cuda/pool_returns.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/full.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace pianola::testing::pool_returns_test {
namespace {

class PoolReturnsTest : public DeviceTest {
 protected:
  static constexpr std::int64_t kFloats = 1 << 18;  // a MiB
  static at::Tensor full(std::int64_t mib, double value) { return at::full({mib * kFloats}, value, device()); }
  static bool all_are(const at::Tensor& tensor, double value) { return same(tensor, at::full_like(tensor, value)); }
  static bool torch_has_memory_of(PoolId pool) {
    return !c10::cuda::CUDACachingAllocator::snapshot(pool, /*include_traces=*/false).segments.empty();
  }

  // One request maps three pages of 20 MiB. Behind the step two of them are free, and the result begins in the third.
  PoolId capture_a_result_behind_scratch() {
    Graph graph(device());
    graph.capture(
        [&] {
          const at::Tensor scratch = full(41, 1);
          result = full(10, 3);
        },
        {.warmup = 1});
    graph.replay();
    return graph.pool().id();
  }
  // Each looks whether pools that ended can go.
  static void make_and_end_pools() {
    synchronize();
    for (int i = 0; i < 3; ++i) {
      at::Tensor other;
      Graph graph(device());
      graph.capture([&] { other = full(2, 5); }, {.warmup = 1});
      graph.replay();
      synchronize();
    }
  }

  at::Tensor result;
};
INSTANTIATE_TEST_SUITE_P(On, PoolReturnsTest, ::testing::Values("cuda"), device_name);

// Torch would delete the pool, and free the result into it.
TEST_P(PoolReturnsTest, AResultInAnExpandableSegmentOutlivesItsPool) {
  const WithExpandableSegments expandable;
  const PoolId pool = capture_a_result_behind_scratch();
  make_and_end_pools();
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_TRUE(torch_has_memory_of(pool));
  EXPECT_TRUE(all_are(result, 3));
  result.reset();
  make_and_end_pools();
  EXPECT_FALSE(torch_has_memory_of(pool));
}

// Torch would unmap its pages: for these it waits for the stream of the capture alone.
TEST_P(PoolReturnsTest, AReplayOnAnotherStreamOutlivesItsGraph) {
  const WithExpandableSegments expandable;
  at::Tensor sum = full(1, 0);
  {
    Graph graph(device());
    graph.capture(
        [&] {
          at::Tensor scratch = full(256, 1);
          for (int i = 0; i < 200; ++i) scratch.add_(1);
          sum.copy_(scratch.narrow(0, 0, kFloats));
        },
        {.warmup = 1});
    synchronize();
    const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool());
    graph.replay();
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  synchronize();
  EXPECT_TRUE(all_are(sum, 201));
}

TEST_P(PoolReturnsTest, AResultOutlivesThatExpandableSegmentsAreSwitchedOff) {
  std::optional<WithExpandableSegments> expandable(std::in_place);
  const PoolId pool = capture_a_result_behind_scratch();
  expandable.reset();  // where the process does not run with them
  make_and_end_pools();
  EXPECT_TRUE(torch_has_memory_of(pool));
  EXPECT_TRUE(all_are(result, 3));
  result.reset();
  make_and_end_pools();
  EXPECT_FALSE(torch_has_memory_of(pool));
}

}  // namespace
}  // namespace pianola::testing::pool_returns_test
