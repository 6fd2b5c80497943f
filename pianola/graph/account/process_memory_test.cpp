#include <pianola/graph/account/process_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/account/captured_memory.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/trace/op_trace.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#if PIANOLA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

namespace pianola::testing::process_memory_test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kFloats = 1 << 18;  // a MiB

class ProcessMemoryTest : public DeviceTest {
 protected:
  static bool is_cuda() { return device().is_cuda(); }
  static const PoolMemory* find(const ProcessMemory& memory, const PoolId& id) {
    const auto found = std::ranges::find(memory.pools, id, &PoolMemory::id);
    return found == memory.pools.end() ? nullptr : &*found;
  }
};
PIANOLA_ON_EVERY_DEVICE(ProcessMemoryTest);

TEST_P(ProcessMemoryTest, HasEachPoolWithItsGraphs) {
  const at::Tensor input = at::ones({16 * kFloats}, device());
  const GraphPool pool(device());
  at::Tensor result;
  Graph one(device()), other(device());
  one.capture([&] { result = input + 1; }, {.pool = pool});
  other.capture([&] { (void)(input * 2); }, {.pool = pool});
  const ProcessMemory memory = process_memory(device());
  const PoolMemory* const found = find(memory, pool.id());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->graphs, 2U);
  EXPECT_EQ(found->bytes, pool.bytes());
  EXPECT_EQ(found->held, static_cast<std::size_t>(16 * kMiB));
  EXPECT_EQ(memory.used.has_value(), is_cuda());
  EXPECT_EQ(memory.tensors >= static_cast<std::uint64_t>(16 * kMiB), is_cuda());
}

TEST_P(ProcessMemoryTest, APoolThatIsGoneIsInNoAccount) {
  std::optional<GraphPool> pool(std::in_place, device());
  const PoolId id = pool->id();
  const at::Tensor input = at::ones({kFloats}, device());
  {
    Graph graph(device());
    graph.capture([&] { (void)(input + 1); }, {.pool = *pool});
    EXPECT_NE(find(process_memory(device()), id), nullptr);
  }
  pool.reset();
  EXPECT_EQ(find(process_memory(device()), id), nullptr);
}

TEST_P(ProcessMemoryTest, APoolThatSleepsIsMarked) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  const GraphPool pool = [] { return GraphPool(device(), {.can_sleep = true}); }();
  const at::Tensor input = at::ones({kFloats}, device());
  Graph graph(device());
  graph.capture([&] { (void)(input + 1); }, {.pool = pool});
  const std::int64_t rest = process_memory(device()).rest();
  (void)suspend_all();
  const ProcessMemory asleep = process_memory(device());
  resume_all();
  ASSERT_NE(find(asleep, pool.id()), nullptr);
  EXPECT_TRUE(find(asleep, pool.id())->is_asleep);
  EXPECT_LT(std::abs(asleep.rest() - rest), 8 * kMiB) << "what it gave back is not counted";
  EXPECT_THAT(asleep.report().to_text(), HasSubstr("asleep"));
}

TEST_P(ProcessMemoryTest, MemoryThatAWatchSawIsAccountedFor) {
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

TEST_P(ProcessMemoryTest, NoWatchBeginsInsideOfACapture) {
  Graph graph(device());
  const at::Tensor input = at::ones({4}, device());
  EXPECT_THROW(graph.capture([&] {
    const MemoryWatch watch(device());
    (void)(input + 1);
  }),
               UsageError);
}

TEST_P(ProcessMemoryTest, WhoLooksOnDisturbsNoCapture) {
  const GraphPool pool(device());
  const at::Tensor input = at::ones({4}, device());
  std::atomic<bool> done = false;
  std::thread onlooker([&] {
    while (!done) (void)process_memory(device());
  });
  for (int i = 0; i < 20; ++i) {
    Graph graph(device());
    graph.capture([&] { (void)(input + 1); }, {.pool = pool, .mode = CaptureMode::relaxed});
  }
  done = true;
  onlooker.join();
}

TEST_P(ProcessMemoryTest, AWatchInsideOfAWatchCountsNothingTwice) {
  const at::Tensor input = at::ones({kFloats}, device());
  const MemoryWatch outer(device());
  const std::int64_t rest = process_memory(device()).rest();
  {
    const MemoryWatch inner(device());
    (void)(input + 1).sum();
  }
  EXPECT_LT(std::abs(process_memory(device()).rest() - rest), 4 * kMiB);
}

TEST_P(ProcessMemoryTest, AWatchThatEndsOnAnotherThreadFindsNothingMore) {
  const auto begin_and_go_on = [] {
    const at::Tensor input = at::ones({kFloats}, device());
    auto watch = std::make_unique<MemoryWatch>(device());
    std::thread([&] { watch.reset(); }).join();
    EXPECT_TRUE(same(input + 1, input * 2)) << "this thread goes on";
  };
  std::thread(begin_and_go_on).join();  // which keeps what is left of the watch
}

// Each looks at what the one around it sees.
TEST_P(ProcessMemoryTest, WatchesMayEndInTheOrderInWhichTheyBegan) {
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

TEST_P(ProcessMemoryTest, ACaptureSeesItsOperationsWhereAWatchAroundItEnds) {
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

TEST_P(ProcessMemoryTest, BehindAWatchThatEndsOnAnotherThreadNobodyWatches) {
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

TEST_P(ProcessMemoryTest, SleepInsideOfAWatchIsNobodysMemory) {
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

TEST_P(ProcessMemoryTest, WhatWasToldStandsBesideWhatIs) {
  const at::Tensor input = at::ones({32 * kFloats}, device());
  const auto step = [&] { (void)(input * 2 + 1).sum(); };
  CapturedMemory memory;
  memory.forecast = predict_memory(step, device());
  Graph graph(device());
  graph.capture(step, {.warmup = 1});
  memory.graph = graph.memory();
  memory.process = process_memory(device());
  EXPECT_TRUE(!is_cuda() || memory.forecast.pool == memory.graph.pool.bytes);
  EXPECT_THAT(memory.report().to_text(), HasSubstr("pool, told before"));
  EXPECT_THAT(memory.report().to_json(), HasSubstr("\"graph\""));
}

}  // namespace
}  // namespace pianola::testing::process_memory_test
