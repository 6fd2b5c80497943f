#include <pianola/graph/cuda/free_memory.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace pianola::testing::free_memory_test {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr std::int64_t kMiB = 1 << 20;

// While it lives, torch's allocator may take so much more than it holds.
class Limit {
 public:
  explicit Limit(std::int64_t bytes) {
    allocator::emptyCache();
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const std::int64_t held = allocator::getDeviceStats(0).reserved_bytes[kAll].current;
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    allocator::setMemoryFraction(static_cast<double>(held + bytes) / static_cast<double>(total), 0);
  }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  ~Limit() {
    allocator::setMemoryFraction(1, 0);
    allocator::emptyCache();
  }
};

class FreeMemoryTest : public DeviceTest {
 protected:
  static at::Tensor block(std::int64_t mib) {
    return at::empty({mib * kMiB}, at::TensorOptions(at::kByte).device(device()));
  }
};
INSTANTIATE_TEST_SUITE_P(On, FreeMemoryTest, ::testing::Values("cuda"), device_name);

TEST_P(FreeMemoryTest, AStepThatFitsEagerlyIsCapturedAlthoughTorchHoldsWhatTheRunBeforeTook) {
  const at::Tensor result = at::ones({8}, device());
  const Limit limit(1000 * kMiB);
  const auto step = [&] {
    const at::Tensor scratch = block(600);
    result.add_(scratch.narrow(0, 0, 8).fill_(1));
  };
  step();
  Graph graph(device());
  graph.capture(step, {.warmup = 1});
  graph.replay();
  EXPECT_EQ(result.sum().item<float>(), 8 * (1 + 2));
  EXPECT_GE(graph.info().pool_bytes, static_cast<std::size_t>(600 * kMiB));
}

TEST_P(FreeMemoryTest, WhereThereIsRoomNothingIsGivenBack) {
  { const at::Tensor unused = block(300); }
  graph::make_room_for_a_pool(0);
  EXPECT_GE(graph::free_memory_of(0).returnable, static_cast<std::size_t>(300 * kMiB));
}

TEST_P(FreeMemoryTest, WhereTheDriverHasLessThanTorchHoldsUnusedThatGoesBack) {
  const Limit limit(1000 * kMiB);
  { const at::Tensor unused = block(600); }
  graph::make_room_for_a_pool(0);
  EXPECT_EQ(graph::free_memory_of(0).returnable, 0U);
  EXPECT_GE(graph::free_memory_of(0).of_driver, static_cast<std::size_t>(990 * kMiB));
}

// Of what lies beside a block that is held, whole pages go back, and no piece of one.
TEST_P(FreeMemoryTest, WhatIsReturnableIsWhatTorchThenGivesBack) {
  const WithExpandableSegments expandable;
  const auto reserved = [] {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator::getDeviceStats(0).reserved_bytes[kAll].current;
  };
  allocator::emptyCache();
  at::Tensor scratch = block(300);
  const at::Tensor held = block(2);
  scratch.reset();
  const std::int64_t before = reserved();
  const auto returnable = static_cast<std::int64_t>(graph::free_memory_of(0).returnable);
  EXPECT_GE(returnable, 280 * kMiB) << "all pages but those at the ends";
  allocator::emptyCache();
  EXPECT_EQ(before - reserved(), returnable);
  EXPECT_EQ(graph::free_memory_of(0).returnable, 0U);
}

}  // namespace
}  // namespace pianola::testing::free_memory_test
