#include <pianola/graph/account/memory_watch.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/account/process_memory.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/trace/op_trace.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#if PIANOLA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>

namespace pianola::testing::memory_watch_test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kFloats = 1 << 18;  // a MiB

class MemoryWatchTest : public DeviceTest {
 protected:
  static bool is_cuda() { return device().is_cuda(); }
};
PIANOLA_ON_EVERY_DEVICE(MemoryWatchTest);

TEST_P(MemoryWatchTest, MemoryThatAWatchSawIsAccountedFor) {
  bool is_accounted_for = false;
  for (int tries = 0; tries < 20 && !is_accounted_for; ++tries) {  // other processes take and give back, too
    const MemoryWatch watch(device());
    const at::Tensor input = at::ones({kFloats}, device());
    Graph graph(device());
    graph.capture([&] { (void)at::mm(input.view({512, 512}), input.view({512, 512})); });
    graph.replay();
    const ProcessMemory memory = process_memory(device());
    ASSERT_EQ(memory.watched.empty(), !is_cuda());
    is_accounted_for = !is_cuda() || std::abs(memory.rest()) < static_cast<std::int64_t>(*memory.used / 100);
  }
  EXPECT_TRUE(is_accounted_for);
}

TEST_P(MemoryWatchTest, NoWatchBeginsInsideOfACapture) {
  Graph graph(device());
  const at::Tensor input = at::ones({4}, device());
  EXPECT_THROW(graph.capture([&] {
    const MemoryWatch watch(device());
    (void)(input + 1);
  }),
               UsageError);
}

TEST_P(MemoryWatchTest, AWatchInsideOfAWatchCountsNothingTwice) {
  const at::Tensor input = at::ones({kFloats}, device());
  const MemoryWatch outer(device());
  const std::int64_t rest = process_memory(device()).rest();
  {
    const MemoryWatch inner(device());
    (void)(input + 1).sum();
  }
  EXPECT_LT(std::abs(process_memory(device()).rest() - rest), 4 * kMiB);
}

TEST_P(MemoryWatchTest, AWatchThatEndsOnAnotherThreadFindsNothingMore) {
  const auto begin_and_go_on = [] {
    const at::Tensor input = at::ones({kFloats}, device());
    auto watch = std::make_unique<MemoryWatch>(device());
    std::thread([&] { watch.reset(); }).join();
    EXPECT_TRUE(same(input + 1, input * 2)) << "this thread goes on";
  };
  std::thread(begin_and_go_on).join();  // which keeps what is left of the watch
}

// Each looks at what the one around it sees.
TEST_P(MemoryWatchTest, WatchesMayEndInTheOrderInWhichTheyBegan) {
  const at::Tensor input = at::ones({4}, device());
  auto first = std::make_unique<MemoryWatch>(device());
  auto second = std::make_unique<MemoryWatch>(device());
  first.reset();
  (void)(input + 1);
  second.reset();
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input.mul(input).add(input); });
  EXPECT_EQ(graph.trace()->ops().size(), 2U) << "the capture sees its operations";
  graph.replay();
  EXPECT_TRUE(same(result, input * 2));
}

TEST_P(MemoryWatchTest, ACaptureSeesItsOperationsWhereAWatchAroundItEnds) {
  const at::Tensor input = at::ones({4}, device());
  at::Tensor result;
  Graph graph(device()), next(device());
  auto watch = std::make_unique<MemoryWatch>(device());
  graph.capture(
      [&] {
        result = input.mul(input);
        watch.reset();
        result = result.add(input);
      },
      {.warmup = 0});
  EXPECT_EQ(graph.trace()->ops().size(), 2U);
  graph.replay();
  EXPECT_TRUE(same(result, input * 2));
  next.capture([&] { result = input.mul(input); });
  EXPECT_EQ(next.trace()->ops().size(), 1U);
  const MemoryWatch last(
      device());  // when it ends, it takes along what the one before could not end inside of the capture
}

#if PIANOLA_WITH_CUDA

std::int64_t taken_while_nobody_watched(c10::Device device) {
  std::int64_t bytes = 0;
  for (const WatchedMemory& one : process_memory(device).watched) {
    if (one.what == "while nobody watched") bytes += one.bytes;
  }
  return bytes;
}

// Which another thread has begun that ends before, or goes on.
void begin_and_end_a_watch(c10::Device device, bool goes_on) {
  std::unique_ptr<MemoryWatch> watch;
  std::thread([&] {
    watch = std::make_unique<MemoryWatch>(device);
    if (goes_on) std::thread([&] { watch.reset(); }).join();
  }).join();
  watch.reset();
}

TEST_P(MemoryWatchTest, BehindAWatchThatEndsOnAnotherThreadNobodyWatches) {
  if (!is_cuda()) GTEST_SKIP() << "on the CPU a watch does nothing";
  for (const bool goes_on : {true, false}) {
    bool is_told = false;
    for (int tries = 0; tries < 20 && !is_told; ++tries) {  // other processes take and give back, too
      begin_and_end_a_watch(device(), goes_on);
      const std::int64_t before = taken_while_nobody_watched(device());
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, 64 * kMiB), cudaSuccess);
      {
        const MemoryWatch next(device());
        is_told = std::abs(taken_while_nobody_watched(device()) - before - 64 * kMiB) < 8 * kMiB;
      }
      ASSERT_EQ(cudaFree(memory), cudaSuccess);
    }
    EXPECT_TRUE(is_told) << (goes_on ? "its thread went on" : "its thread had ended");
  }
}

#endif

TEST_P(MemoryWatchTest, SleepInsideOfAWatchIsNobodysMemory) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  bool is_right = false;
  for (int tries = 0; tries < 20 && !is_right; ++tries) {  // other processes take and give back, too
    const MemoryWatch watch(device());
    GraphPool pool(device(), {.can_sleep = true});
    const at::Tensor input = at::ones({64 * kFloats}, device());
    Graph graph(device());
    graph.capture([&] { (void)(input + 1).sum(); }, {.pool = pool});
    (void)pool.suspend();
    (void)(input + 1).sum();
    const std::int64_t rest = process_memory(device()).rest();
    pool.resume();
    (void)(input + 1).sum();
    const auto is_not_negative = [](const WatchedMemory& one) { return one.bytes >= 0; };
    is_right = std::abs(rest) < 8 * kMiB && std::ranges::all_of(process_memory(device()).watched, is_not_negative);
  }
  EXPECT_TRUE(is_right);
}

}  // namespace
}  // namespace pianola::testing::memory_watch_test
