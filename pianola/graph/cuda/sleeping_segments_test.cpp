#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/memory_account.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::testing::sleeping_segments_test {
namespace {

constexpr std::int64_t kFloats = 1 << 18;  // a MiB

/// What the driver says of pools that sleep.
class SleepingSegmentsTest : public DeviceTest {
 protected:
  // 200 MiB of scratch, and a MiB of results.
  void step() { result = (at::full({100 * kFloats}, 2.0, device()) * x).narrow(0, 0, kFloats).clone(); }

  at::Tensor x, result;

  void SetUp() override {
    DeviceTest::SetUp();
    PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
    if (!IsSkipped() && !HasFatalFailure()) x = at::ones({100 * kFloats}, device());
  }
};
INSTANTIATE_TEST_SUITE_P(On, SleepingSegmentsTest, ::testing::Values("cuda"), device_name);

TEST_P(SleepingSegmentsTest, TheDriverGetsTheMemory) {
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device());
  graph.capture([&] { step(); }, {.warmup = 1, .pool = pool});
  graph.replay();
  synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  bool gave_all = false, took_no_more = false;
  for (int tries = 0; tries < 20 && !(gave_all && took_no_more); ++tries) {  // other processes take and give back, too
    const MemoryAccount account;
    const auto bytes = static_cast<std::int64_t>(pool.suspend());
    EXPECT_GE(bytes, static_cast<std::int64_t>(pool.bytes()));
    gave_all = gave_all || account.taken_bytes() <= -bytes * 95 / 100;
    pool.resume();
    took_no_more = took_no_more || account.taken_bytes() <= 2 << 20;
    EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
  }
  EXPECT_TRUE(gave_all && took_no_more);
}

TEST_P(SleepingSegmentsTest, WithoutRoomItGoesOnSleeping) {
  if (std::getenv("PIANOLA_WHOLE_DEVICE") == nullptr) GTEST_SKIP() << "it fills the device, which others may be using";
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device());
  graph.capture([&] { step(); }, {.warmup = 1, .pool = pool});
  graph.replay();
  pool.suspend();
  {
    std::vector<at::Tensor> others;
    try {
      for (;;) others.push_back(at::empty({64 * kFloats}, device()));
    } catch (const c10::OutOfMemoryError&) {
    }
    EXPECT_THAT([&] { pool.resume(); }, ::testing::ThrowsMessage<OutOfMemoryError>(::testing::HasSubstr("bytes left")));
    EXPECT_TRUE(pool.is_asleep());
  }
  pool.resume();
  EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
  x.fill_(4);
  graph.replay();
  EXPECT_TRUE(same(result, at::full({kFloats}, 8.0, device())));
}

TEST_P(SleepingSegmentsTest, WhileAnotherThreadCapturesItIsRefused) {
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device()), other(device());
  graph.capture([&] { step(); }, {.warmup = 1, .pool = pool});
  std::string refused;
  at::Tensor y = at::ones({8}, device());
  other.capture(
      [&] {
        y.add_(1);
        if (!is_recording()) return;
        std::thread([&] {
          try {
            pool.suspend();
          } catch (const UsageError& error) {
            refused = error.what();
          }
        }).join();
      },
      {.warmup = 1, .mode = CaptureMode::thread_local_});
  EXPECT_THAT(refused, ::testing::HasSubstr("suspend() was called while a step is captured"));
  pool.suspend();
  pool.resume();
  graph.replay();
  EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
}

TEST_P(SleepingSegmentsTest, AnotherStreamMayBeBusyMeanwhile) {
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device());
  graph.capture([&] { step(); }, {.warmup = 1, .pool = pool});
  at::Tensor other = at::ones({kFloats}, device());
  for (int i = 0; i < 20; ++i) {
    {
      const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool());
      for (int k = 0; k < 50; ++k) other.mul_(1.0);
    }
    graph.replay();
    pool.suspend();
    pool.resume();
    ASSERT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
  }
}

TEST_P(SleepingSegmentsTest, MemoryOfAPoolThatEndsGoesBack) {
  const auto once = [&] {
    GraphPool pool(device(), {.can_sleep = true});
    Graph graph(device());
    graph.capture([&] { step(); }, {.warmup = 1, .pool = pool, .plan_memory = true});
    graph.replay();
    pool.suspend();
    pool.resume();
    result.reset();
  };
  const auto held = [] {
    synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  once();
  const auto before = held();
  for (int i = 0; i < 5; ++i) once();
  EXPECT_LE(held(), before);
}

}  // namespace
}  // namespace pianola::testing::sleeping_segments_test
