#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/memory_account.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>

#include <cstddef>
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
  at::Tensor y = at::ones({8}, device());
  {
    std::vector<at::Tensor> others;
    try {
      for (;;) others.push_back(at::empty({64 * kFloats}, device()));
    } catch (const c10::OutOfMemoryError&) {
    }
    EXPECT_THAT([&] { pool.resume(); }, ::testing::ThrowsMessage<OutOfMemoryError>(::testing::HasSubstr("bytes left")));
    Graph other(device());
    std::string refused;
    const auto resume = [&] { refused = refusal<OutOfMemoryError>("a resume without room", [&] { pool.resume(); }); };
    other.capture([&] { y.add_(1), std::thread(resume).join(); }, {.warmup = 0});
    EXPECT_THAT(refused, ::testing::AllOf(::testing::HasSubstr("cannot go back to the driver while a step is captured"),
                                          ::testing::HasSubstr("fix:   call resume() when that capture has ended")));
    EXPECT_TRUE(pool.is_asleep());
  }
  pool.resume();
  EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
  x.fill_(4);
  graph.replay();
  EXPECT_TRUE(same(result, at::full({kFloats}, 8.0, device())));
}

// Torch's allocator of pinned memory, while it lives, but that it finds none for the `number`-th request.
class NoPinnedMemory final : public at::HostAllocator {
 public:
  explicit NoPinnedMemory(int number) : countdown_(number) { at::setHostAllocator(at::kCUDA, this, kPriority); }
  NoPinnedMemory(const NoPinnedMemory&) = delete;
  NoPinnedMemory& operator=(const NoPinnedMemory&) = delete;
  ~NoPinnedMemory() override { at::setHostAllocator(at::kCUDA, &torchs_, kPriority); }

  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(bytes == 0 || --countdown_ != 0, "CUDA error: out of memory, says the test");
    return torchs_.allocate(bytes);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return torchs_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { torchs_.copy_data(to, from, bytes); }
  bool record_event(void* block, void* context, c10::Stream stream) override {
    return torchs_.record_event(block, context, stream);
  }
  void empty_cache() override { torchs_.empty_cache(); }
  at::HostStats get_stats() override { return torchs_.get_stats(); }
  void reset_accumulated_stats() override { torchs_.reset_accumulated_stats(); }
  void reset_peak_stats() override { torchs_.reset_peak_stats(); }

  [[nodiscard]] bool has_failed() const { return countdown_ <= 0; }

 private:
  static constexpr std::uint8_t kPriority = 1;
  at::HostAllocator& torchs_ = *at::getHostAllocator(at::kCUDA);
  int countdown_;
};

// 300 MiB are held, in pieces of 128.
TEST_P(SleepingSegmentsTest, WithoutPinnedMemoryItStaysAwake) {
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device());
  at::Tensor large;
  graph.capture([&] { large = at::full({300 * kFloats}, 3.0, device()) * 2; }, {.warmup = 1, .pool = pool});
  graph.replay();
  for (const int number : {1, 2, 3}) {
    const NoPinnedMemory none(number);
    EXPECT_THAT([&] { (void)pool.suspend(); },
                ::testing::ThrowsMessage<OutOfMemoryError>(::testing::AllOf(
                    ::testing::HasSubstr("the host has no "), ::testing::HasSubstr(" bytes of pinned memory left"),
                    ::testing::HasSubstr("it stays awake"), ::testing::HasSubstr("[PG908]"))));
    EXPECT_TRUE(none.has_failed());
    EXPECT_FALSE(pool.is_asleep());
    large.zero_();
    graph.replay();
    EXPECT_TRUE(same(large, at::full_like(large, 6.0))) << number;
  }
  EXPECT_GE(pool.suspend(), std::size_t{300} << 20U);
  pool.resume();
  EXPECT_TRUE(same(large, at::full_like(large, 6.0)));
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

TEST_P(SleepingSegmentsTest, WhileAnotherThreadCapturesItWakes) {
  GraphPool pool(device(), {.can_sleep = true});
  Graph graph(device());
  graph.capture([&] { step(); }, {.warmup = 1, .pool = pool});
  graph.replay();
  at::Tensor y = at::zeros({8}, device());
  double replays = 0;
  for (const CaptureMode mode : {CaptureMode::thread_local_, CaptureMode::global, CaptureMode::relaxed}) {
    for (const bool keep_executables : {true, false}) {
      Graph other(device());
      pool.suspend({.keep_executables = keep_executables});
      other.capture(
          [&] {
            y.add_(1);
            std::thread([&] { EXPECT_NO_THROW(pool.resume()); }).join();
            y.add_(1);
          },
          {.warmup = 0, .mode = mode});
      EXPECT_FALSE(pool.is_asleep());
      EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
      x.fill_(2);
      graph.replay();
      EXPECT_TRUE(same(result, at::full({kFloats}, 4.0, device())));
      x.fill_(1);
      graph.replay();
      other.replay();
      EXPECT_TRUE(same(y, at::full_like(y, 2.0 * ++replays)));
    }
  }
}

TEST_P(SleepingSegmentsTest, APoolThatEndsAsleepWhileAnotherThreadCapturesLeavesItsResults) {
  std::optional<GraphPool> pool;
  pool.emplace(device(), GraphPool::Options{.can_sleep = true});
  std::optional<Graph> graph(device());
  graph->capture([&] { step(); }, {.warmup = 1, .pool = *pool});
  graph->replay();
  pool->suspend();
  Graph other(device());
  at::Tensor y = at::zeros({8}, device());
  other.capture(
      [&] {
        y.add_(1);
        std::thread([&] {
          graph.reset();
          pool.reset();
        }).join();
      },
      {.warmup = 0});
  EXPECT_TRUE(same(result, at::full({kFloats}, 2.0, device())));
  other.replay();
  EXPECT_TRUE(same(y, at::ones_like(y)));
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
