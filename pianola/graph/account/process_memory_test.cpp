#include <pianola/graph/account/process_memory.hpp>

#include <pianola/graph/account/captured_memory.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stop_token>
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

// Asks again and again on a thread of its own while it lives.
class Onlooker {
 public:
  explicit Onlooker(c10::Device device)
      : thread_([device](const std::stop_token& stop) {
          while (!stop.stop_requested()) (void)process_memory(device);
        }) {}

 private:
  std::jthread thread_;
};

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

TEST_P(ProcessMemoryTest, WhoLooksOnDisturbsNoCapture) {
  const GraphPool pool(device());
  const at::Tensor input = at::ones({4}, device());
  const Onlooker onlooker(device());
  for (int i = 0; i < 20; ++i) {
    Graph graph(device());
    graph.capture([&] { (void)(input + 1); }, {.pool = pool, .mode = CaptureMode::relaxed});
  }
}

TEST_P(ProcessMemoryTest, WhoLooksOnDisturbsNoReplayWhoseNumbersChange) {
  at::Tensor sum = at::zeros({4}, device());
  const at::Tensor input = at::ones({4}, device());
  Graph graph(device());
  Number rate = graph.number("rate", 1);
  graph.capture([&] {
    for (int i = 0; i < 100; ++i) sum.add_(input * rate);
  });
  const Onlooker onlooker(device());
  for (int i = 0; i < 1000; ++i) {
    rate.set(1 + i % 2);
    graph.replay();
  }
  EXPECT_EQ(sum[0].item<double>(), 100 * 1500);
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
