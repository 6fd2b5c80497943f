#include <pianola/graph/graph.hpp>

#include <pianola/graph/account/memory_watch.hpp>
#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

namespace pianola::process_mark_test {
namespace {

// exit() destroys what is static when the thread-locals of its thread are gone, torch's current streams among them.
class ExitTest : public testing::DeviceTest {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
PIANOLA_ON_EVERY_DEVICE(ExitTest);

void capture_and_replay(Graph& graph, at::Tensor& x, const CaptureOptions& options = {.warmup = 1}) {
  graph.capture([&] { x.mul_(2).add_(1); }, options);
  graph.replay();
}

TEST_P(ExitTest, GraphsAndPoolsMayBeStatic) {
  EXPECT_EXIT(
      {
        static GraphPool pool(device());
        static at::Tensor x = at::ones({8}, device());
        static Graph alone(device());
        static Graph in_pool(device());
        capture_and_replay(alone, x);
        capture_and_replay(in_pool, x, {.warmup = 1, .pool = pool});
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AStaticPoolMaySleep) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  EXPECT_EXIT(
      {
        static GraphPool pool(device(), {.can_sleep = true});
        static const at::Tensor x = at::ones({1 << 20}, device());
        static at::Tensor result;
        static Graph graph(device());
        graph.capture([] { result = x * 2; }, {.warmup = 1, .pool = pool});
        graph.replay();
        (void)pool.suspend();
        std::exit(pool.is_asleep() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AnyThreadMayCallIt) {
  EXPECT_EXIT(
      {
        static at::Tensor x = at::ones({8}, device());
        static std::optional<Graph> here(device());
        static std::optional<Graph> there;
        capture_and_replay(*here, x);
        std::thread([] {
          capture_and_replay(there.emplace(device()), x);
          here->replay();
          std::exit(0);
        }).join();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AMemoryWatchMayBeStatic) {
  EXPECT_EXIT(
      {
        static const MemoryWatch watch(device());
        static const at::Tensor x = at::ones({8}, device());
        static const at::Tensor y = x * 2;
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Leaves the process, behind all that became static later: with 0 where that has left a pool alone.
struct SeesAPool {
  ~SeesAPool() { std::_Exit(living_pools().empty() ? 1 : 0); }
};

TEST_P(ExitTest, TheMainThreadMayCallItWithoutAGraphOfItsOwn) {
  EXPECT_EXIT(
      {
        std::thread([] {
          static const SeesAPool last;
          static at::Tensor x = at::ones({8}, device());
          static Graph graph(device());
          capture_and_replay(graph, x);
        }).join();
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

// Older than the driver, whose own end comes first.
std::optional<GraphPool> pool_of_the_program;
std::optional<Graph> graph_of_the_program;

TEST_P(ExitTest, WhatTheProgramBeganWithMayHoldThem) {
  EXPECT_EXIT(
      {
        at::Tensor x = at::ones({8}, device());
        pool_of_the_program.emplace(device());
        graph_of_the_program.emplace(device());
        capture_and_replay(*graph_of_the_program, x, {.warmup = 1, .pool = *pool_of_the_program});
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AGraphOfAThreadEndsWithTheThread) {
  const std::size_t before = living_pools().size();
  at::Tensor x = at::ones({8}, device());
  std::thread([&] {
    thread_local Graph graph(device());
    capture_and_replay(graph, x);
    EXPECT_EQ(living_pools().size(), before + 1);
  }).join();
  EXPECT_EQ(living_pools().size(), before);
}

// It is destroyed when thread-locals are gone that the graph needs.
TEST_P(ExitTest, SoDoesOneThatAnOlderObjectOfTheThreadHolds) {
  const std::size_t before = living_pools().size();
  at::Tensor x = at::ones({8}, device());
  std::thread([&] {
    thread_local std::optional<Graph> graph;
    capture_and_replay(graph.emplace(device()), x);
    EXPECT_EQ(living_pools().size(), before + 1);
  }).join();
  EXPECT_EQ(living_pools().size(), before);
}

TEST_P(ExitTest, APoolOfAThreadMayEndAsleep) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  at::Tensor result;
  std::thread([&] {
    thread_local GraphPool pool(device(), {.can_sleep = true});
    const at::Tensor x = at::ones({1 << 20}, device());
    Graph graph(device());
    graph.capture([&] { result = x * 2; }, {.warmup = 1, .pool = pool});
    graph.replay();
    (void)pool.suspend();
  }).join();
  EXPECT_TRUE(testing::same(result, at::full({1 << 20}, 2.0, device())));
}

}  // namespace
}  // namespace pianola::process_mark_test
