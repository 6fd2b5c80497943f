// Pools that sleep without the executables of their graphs.
#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/eager.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pianola::testing::pool_executables_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PoolExecutablesTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
    if (!IsSkipped() && !HasFatalFailure()) pool.emplace(device(), GraphPool::Options{.can_sleep = true});
  }
  void sleep_without() {
    (void)pool->suspend({.keep_executables = false});
    pool->resume();
  }

  std::optional<GraphPool> pool;
};
PIANOLA_ON_EVERY_DEVICE(PoolExecutablesTest);

TEST_P(PoolExecutablesTest, TheyGoWhileThePoolSleepsAndComeBackWithIt) {
  const at::Tensor x = at::ones({1 << 12}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x * 2 + 1; }, {.warmup = 1, .pool = *pool});
  (void)pool->suspend({.keep_executables = false});
  EXPECT_EQ(graph.raw_executable(), nullptr);
  const GraphMemory asleep = graph.memory();
  EXPECT_EQ(asleep.executable.device + asleep.executable.host, 0U);
  EXPECT_EQ(asleep.pool.executables.device + asleep.pool.executables.host, 0U);
  EXPECT_EQ(graph.info().executable_bytes, 0U);
  pool->resume();
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda()) << "it is there before the first replay";
  EXPECT_EQ(graph.memory().executable.device, graph.memory().pool.executables.device);
  for (const double value : {3.0, 5.0}) {
    x.fill_(value);
    graph.replay();
    EXPECT_TRUE(same(result, x * 2 + 1)) << value;
  }
}

TEST_P(PoolExecutablesTest, TheyStayWhereNothingElseIsAsked) {
  const at::Tensor x = at::ones({8}, device());
  Graph graph(device());
  graph.capture([&] { (void)(x + 1); }, {.warmup = 1, .pool = *pool});
  const void* const executable = graph.raw_executable();
  (void)pool->suspend();
  EXPECT_EQ(graph.raw_executable(), executable);
  (void)pool->suspend({.keep_executables = false});
  EXPECT_EQ(graph.raw_executable(), nullptr) << "also where the pool sleeps already";
  pool->resume();
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda());
}

TEST_P(PoolExecutablesTest, TrainingGoesOnAsInEagerMode) {
  for (const int branches : {0, 4}) {
    SCOPED_TRACE(branches);
    Training graphed(device(), 0.2), eager(device(), 0.2);
    Graph graph(device());
    graph.capture([&] { graphed.step(); }, {.warmup = 2, .pool = *pool, .branches = branches});
    for (int step = 0; step < 5; ++step) {
      for (Training* const one : {&graphed, &eager}) one->feed(step);
      seed(static_cast<std::uint64_t>(step));
      graph.replay();
      seed(static_cast<std::uint64_t>(step));
      eager.step();
      sleep_without();
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    }
  }
}

TEST_P(PoolExecutablesTest, InputsAreCopiedByTheNewOnesToo) {
  const at::Tensor input = at::ones({64}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input * 2; }, {.warmup = 1, .pool = *pool, .inputs = {input}});
  const std::vector<at::Tensor> source = {at::full({64}, 3.0, device())};
  for (int i = 0; i < 3; ++i) {
    graph.replay(source);  // from the same place each time
    EXPECT_TRUE(same(result, source[0] * 2)) << i;
    sleep_without();
    input.fill_(i);
    graph.replay();
    EXPECT_TRUE(same(result, at::full({64}, 2.0 * i, device()))) << "what was copied before is not copied again, " << i;
    sleep_without();
  }
}

TEST_P(PoolExecutablesTest, NumbersAreGivenToTheNewOnesToo) {
  at::Tensor weight = randn({6, 5}, 1), twin = weight.clone();
  const at::Tensor gradient = randn({6, 5}, 2);
  Graph graph(device());
  Number rate = graph.number("rate", 0.1);
  graph.capture([&] { weight.sub_(gradient * rate); }, {.pool = *pool});
  for (const double value : {0.1, 0.5, 0.5, -2.0}) {
    rate.set(value);
    for (int i = 0; i < 2; ++i) {
      graph.replay();
      twin.sub_(gradient * value);
      EXPECT_TRUE(same(weight, twin)) << value;
      sleep_without();
    }
  }
}

TEST_P(PoolExecutablesTest, EachPieceOfAGraphHasItsOwnAgain) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  int calls = 0;
  const EagerPart part = eager([&](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
    ++calls;
    return {given[0].sum().item<float>() > 20 ? given[0] * 2 : given[0] * 3};
  });
  Graph graph(device());
  graph.capture([&] { result = part({x + 1})[0] - 1; }, {.warmup = 1, .pool = *pool});
  for (int i = 0; i < 4; ++i) {
    x.fill_(i);
    graph.replay();
    EXPECT_TRUE(same(result, (x + 1) * (i > 1 ? 2 : 3) - 1)) << i;
    (void)pool->suspend({.keep_executables = false});
    EXPECT_EQ(graph.memory().executable.device, 0U);
    const int before = calls;
    EXPECT_THROW(graph.replay(), UsageError);
    EXPECT_EQ(calls, before) << "nor does the part run";
    pool->resume();
  }
}

TEST_P(PoolExecutablesTest, WhatWasNeverMadeExecutableIsNotMade) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x * 2; }, {.warmup = 1, .pool = *pool, .instantiate = false});
  sleep_without();
  EXPECT_EQ(graph.raw_executable(), nullptr);
  graph.replay();
  EXPECT_TRUE(same(result, x * 2));
}

TEST_P(PoolExecutablesTest, NoneIsMadeWhileThePoolSleeps) {
  const at::Tensor x = at::ones({8}, device());
  Graph graph(device());
  graph.capture([&] { (void)(x + 1); }, {.warmup = 1, .pool = *pool});
  (void)pool->suspend({.keep_executables = false});
  EXPECT_THAT([&] { graph.instantiate(); },
              ThrowsMessage<UsageError>(HasSubstr("instantiate() was called on a graph whose pool is asleep")));
  EXPECT_THAT([&] { graph.replay(); }, ThrowsMessage<UsageError>(HasSubstr("a graph whose pool is asleep")));
  EXPECT_EQ(graph.raw_executable(), nullptr);
  pool->resume();
}

TEST_P(PoolExecutablesTest, AGraphMayEndWithoutThem) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  std::optional<Graph> graph(device());
  graph->capture([&] { result = x + 1; }, {.warmup = 1, .pool = *pool});
  graph->replay();
  (void)pool->suspend({.keep_executables = false});
  graph.reset();
  pool->resume();
  EXPECT_TRUE(same(result, x + 1));
}

TEST_P(PoolExecutablesTest, AGraphThatIsResetMeanwhileForgetsThatItHadOne) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x + 1; }, {.warmup = 1, .pool = *pool});
  (void)pool->suspend({.keep_executables = false});
  graph.reset();
  pool->resume();
  graph.capture([&] { result = x * 2; }, {.warmup = 1, .pool = *pool, .instantiate = false});
  sleep_without();
  EXPECT_EQ(graph.raw_executable(), nullptr) << "nobody asked for one";
  const GraphMemory memory = graph.memory();
  EXPECT_EQ(memory.executable.device + memory.executable.host, 0U);
  graph.replay();
  EXPECT_TRUE(same(result, x * 2));
}

// Of a graph whose executables do not fit at first.
class LargeExecutables final : public PoolGraphs::Executables {
 public:
  void drop_executables() noexcept override { are_there = false; }
  ExecutableMemory make_executables() override {
    if (--failures >= 0) throw OutOfMemoryError({.what = "no room for executables, says the test"});
    are_there = true;
    return {.device = 7};
  }

  bool are_there = true;
  int failures = 0;
};

TEST_P(PoolExecutablesTest, WhereThereIsNoRoomForThemThePoolGoesOnSleeping) {
  const at::Tensor x = at::ones({1 << 18}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x * 2 + 1; }, {.warmup = 1, .pool = *pool});
  graph.replay();
  LargeExecutables small, large;
  PoolGraphs& graphs = GraphPoolRef(*pool).state()->graphs();
  for (LargeExecutables* const one : {&small, &large}) graphs.add(one, *one);
  graphs.set(&large, {.device = 5});
  (void)pool->suspend({.keep_executables = false});
  EXPECT_FALSE(small.are_there || large.are_there);
  large.failures = 4;  // two each time
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { pool->resume(); }, ThrowsMessage<OutOfMemoryError>(HasSubstr("no room for executables")));
    EXPECT_TRUE(pool->is_asleep());
    EXPECT_FALSE(small.are_there || large.are_there) << "none, or all";
    EXPECT_EQ(graph.raw_executable(), nullptr);
    EXPECT_EQ(graphs.executables().device, 0U);
    EXPECT_THROW(graph.replay(), UsageError);
  }
  pool->resume();
  EXPECT_TRUE(small.are_there && large.are_there);
  EXPECT_GE(graphs.executables().device, 14U);
  EXPECT_TRUE(same(result, at::full_like(x, 3.0))) << "what was kept is there";
  x.fill_(4);
  graph.replay();
  EXPECT_TRUE(same(result, at::full_like(x, 9.0)));
  for (LargeExecutables* const one : {&small, &large}) graphs.remove(one);
}

TEST_P(PoolExecutablesTest, WhereThereIsNoRoomForThemWhatIsUnusedGoesAndTheyAreTriedOnceMore) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x * 2; }, {.warmup = 1, .pool = *pool});
  LargeExecutables large;
  PoolGraphs& graphs = GraphPoolRef(*pool).state()->graphs();
  graphs.add(&large, large);
  (void)pool->suspend({.keep_executables = false});
  large.failures = 1;
  pool->resume();
  EXPECT_TRUE(large.are_there);
  EXPECT_FALSE(pool->is_asleep());
  graph.replay();
  EXPECT_TRUE(same(result, x * 2));
  graphs.remove(&large);
}

TEST_P(PoolExecutablesTest, AllPoolsSleepWithoutThem) {
  const at::Tensor x = at::ones({8}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x * 2; }, {.warmup = 1, .pool = *pool});
  (void)suspend_all({.keep_executables = false});
  EXPECT_EQ(graph.raw_executable(), nullptr);
  resume_all();
  graph.replay();
  EXPECT_TRUE(same(result, x * 2));
}

}  // namespace
}  // namespace pianola::testing::pool_executables_test
