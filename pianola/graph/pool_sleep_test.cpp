#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::testing::pool_sleep_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kFloats = 1 << 18;  // a MiB

class PoolSleepTest : public DeviceTest {
 protected:
  static GraphPool make_pool() { return {device(), {.can_sleep = true}}; }
  void SetUp() override {
    DeviceTest::SetUp();
    PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  }
};
PIANOLA_ON_EVERY_DEVICE(PoolSleepTest);

TEST_P(PoolSleepTest, GraphsReplayAsBeforeWhenTheyHaveSlept) {
  for (const bool plan_memory : {false, true}) {
    SCOPED_TRACE(plan_memory ? "planned" : "as torch has it");
    GraphPool pool = make_pool();
    Training graphed(device()), eager(device());
    Graph graph(device());
    graph.capture([&] { graphed.step(); }, {.warmup = 2, .pool = pool, .plan_memory = plan_memory});
    for (int step = 0; step < 6; ++step) {
      graphed.feed(step);
      eager.feed(step);
      graph.replay();
      eager.step();
      EXPECT_EQ(pool.suspend() != 0, device().is_cuda())
          << "the tape gives whole pages back, and these blocks are small";
      EXPECT_TRUE(pool.is_asleep());
      pool.resume();
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    }
  }
}

TEST_P(PoolSleepTest, ScratchGoesAndResultsStay) {
  GraphPool pool = make_pool();
  const at::Tensor x = at::ones({8 * kFloats}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = ((x * 2) * 3 + 1).sqrt().narrow(0, 0, kFloats).clone(); }, {.warmup = 1, .pool = pool});
  graph.replay();
  const at::Tensor before = result.clone();
  EXPECT_GE(pool.suspend(), 8U << 20U);
  EXPECT_EQ(pool.suspend(), 0U) << "it sleeps already";
  pool.resume();
  pool.resume();
  EXPECT_TRUE(same(result, before));
  x.fill_(5);
  graph.replay();
  EXPECT_TRUE(same(result, ((x * 2) * 3 + 1).sqrt().narrow(0, 0, kFloats)));
}

TEST_P(PoolSleepTest, GraphsTakeInputsFromAnywhere) {
  GraphPool pool = make_pool();
  const at::Tensor input = at::ones({kFloats}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input * 2; }, {.warmup = 1, .pool = pool, .inputs = {input}});
  Graph other(device());
  at::Tensor inside;  // of memory that may go
  other.capture([&] { inside = input.new_full({kFloats}, 7); }, {.warmup = 1, .pool = pool});
  other.replay();
  for (int i = 0; i < 4; ++i) {
    const at::Tensor source = i % 2 == 0 ? at::full({kFloats}, 3.0 + i, device()) : inside;
    graph.replay(std::vector<at::Tensor>{source});
    EXPECT_TRUE(same(result, source * 2)) << i;
    pool.suspend();
    pool.resume();
  }
}

// On another graph's step: its tensor is gone, and the second graph is what holds the memory.
TEST_P(PoolSleepTest, WhatAnotherGraphReadsIsKept) {
  GraphPool pool = make_pool();
  const at::Tensor x = at::ones({4 * kFloats}, device());
  at::Tensor made, read;
  Graph maker(device()), reader(device());
  maker.capture([&] { made = x * 3; }, {.warmup = 1, .pool = pool});
  maker.replay();
  reader.capture([&] { read = made + 1; }, {.warmup = 1});
  made.reset();
  pool.suspend();
  pool.resume();
  reader.replay();
  EXPECT_TRUE(same(read, at::full_like(x, 4.0)));
}

TEST_P(PoolSleepTest, ARefusedReplayLeavesItsInputsAsTheyWere) {
  GraphPool pool = make_pool();
  const at::Tensor input = at::ones({8}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input * 2; }, {.warmup = 1, .pool = pool, .inputs = {input}});
  graph.replay(std::vector<at::Tensor>{at::full({8}, 3.0, device())});
  pool.suspend();
  EXPECT_THROW(graph.replay(std::vector<at::Tensor>{at::full({8}, 5.0, device())}), UsageError);
  EXPECT_TRUE(same(input, at::full({8}, 3.0, device())));
  pool.resume();
}

TEST_P(PoolSleepTest, ASleepingPoolRefusesReplaysAndCaptures) {
  GraphPool pool = make_pool();
  at::Tensor x = at::ones({8}, device());
  Graph graph(device()), other(device());
  graph.capture([&] { x.add_(1); }, {.warmup = 1, .pool = pool});
  pool.suspend();
  EXPECT_THAT([&] { graph.replay(); },
              ThrowsMessage<UsageError>(
                  HasSubstr("replay() was called on a graph whose pool is asleep; nothing was launched")));
  EXPECT_THAT([&] { other.capture([&] { x.add_(1); }, {.pool = pool}); },
              ThrowsMessage<UsageError>(HasSubstr("capture() was given a pool that is asleep")));
  EXPECT_TRUE(same(x, at::ones({8}, device())));
  pool.resume();
  graph.replay();
  EXPECT_TRUE(same(x, at::full({8}, 2.0, device())));
}

TEST_P(PoolSleepTest, ATensorThatMovedMeanwhileIsNamedAndRefused) {
  GraphPool pool = make_pool();
  at::Tensor weight = at::ones({16}, device()).requires_grad_(), cache = at::ones({16}, device());
  at::Tensor result;
  Graph graph(device());
  const at::NoGradGuard no_grad;
  graph.capture([&] { result = weight + cache; },
                {.warmup = 1, .pool = pool, .names = {{"weight", weight}, {"cache", cache}}});
  const auto sleep_while = [&](const auto& others_work) {
    (void)pool.suspend();
    others_work();
    pool.resume();
  };
  const auto refused = [&](const char* what, const char* rule) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT([&] { graph.replay(); },
                  ThrowsMessage<ReplayError>(
                      ::testing::AllOf(HasSubstr(what), HasSubstr("while the graph's pool slept; nothing was launched"),
                                       HasSubstr(rule), HasSubstr("fix:   make it inside of GraphPool::Allocations"))))
          << "and so it stays, " << i;
    }
  };
  sleep_while([] {});
  graph.replay();
  EXPECT_TRUE(same(result, at::full({16}, 2.0, device())));
  const at::Tensor before = cache.alias();
  sleep_while([&] { cache.set_data(at::full({16}, 5.0, device())); });
  refused("'cache', a Float tensor of shape [16]: its memory was replaced", "[PG401]");
  sleep_while([] {});
  refused("'cache'", "[PG401]");
  EXPECT_TRUE(same(result, at::full({16}, 2.0, device())));
  cache.set_data(before);
  graph.replay();
  sleep_while([&] { weight.set_data(at::full({16}, 7.0, device())); });
  refused("'weight', a Float tensor of shape [16]: its memory was replaced", "[PG402]");
}

// Replays of CheckMode::standard go on with the memory of the capture.
TEST_P(PoolSleepTest, WhatMovedBeforeOrIsGoneIsNoMatterOfSleep) {
  GraphPool pool = make_pool();
  at::Tensor moved = at::ones({16}, device()), gone = at::ones({16}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = moved + gone; }, {.warmup = 1, .pool = pool});
  moved.set_data(at::full({16}, 5.0, device()));
  (void)pool.suspend();
  gone.reset();
  pool.resume();
  graph.replay();
  EXPECT_TRUE(same(result, at::full({16}, 2.0, device())));
}

TEST_P(PoolSleepTest, WhatCannotSleepIsRefused) {
  GraphPool plain(device());
  EXPECT_THAT([&] { plain.suspend(); },
              ThrowsMessage<UsageError>(HasSubstr("suspend() was called on a pool that was not made to sleep")));
  GraphPool pool = make_pool();
  Graph graph(device());
  EXPECT_THAT([&] { graph.capture([&] { pool.suspend(); }, {.warmup = 1}); },
              ThrowsMessage<UsageError>(HasSubstr("suspend() was called while a capture is open on this thread")));
  EXPECT_THAT([&] { graph.capture([&] { pool.resume(); }, {.warmup = 1}); },
              ThrowsMessage<UsageError>(HasSubstr("resume() was called while a capture is open on this thread")));
}

TEST_P(PoolSleepTest, AGraphAloneInItsPoolSleepsByItself) {
  const at::Tensor x = at::ones({4 * kFloats}, device());
  at::Tensor result;
  Graph graph(device());
  EXPECT_THAT([&] { graph.suspend(); },
              ThrowsMessage<UsageError>(HasSubstr("suspend() was called on a graph that holds no capture")));
  const GraphPool pool = make_pool();
  graph.capture([&] { result = (x * 2 + 1).narrow(0, 0, kFloats).clone(); }, {.warmup = 1, .pool = pool});
  for (const bool keep_executables : {true, false}) {
    graph.replay();
    EXPECT_GE(graph.suspend({.keep_executables = keep_executables}), 4U << 20U);
    EXPECT_TRUE(pool.is_asleep());
    EXPECT_EQ(graph.suspend(), 0U) << "it sleeps already";
    EXPECT_THROW(graph.replay(), UsageError);
    graph.resume();
    graph.resume();
    EXPECT_FALSE(pool.is_asleep());
    EXPECT_TRUE(same(result, at::full({kFloats}, 3.0, device())));
  }
  x.fill_(4);
  graph.replay();
  EXPECT_TRUE(same(result, at::full({kFloats}, 9.0, device())));
}

TEST_P(PoolSleepTest, AGraphThatSharesItsPoolLeavesSleepToThePool) {
  GraphPool pool = make_pool();
  at::Tensor x = at::ones({8}, device());
  Graph graph(device());
  std::optional<Graph> other(device());
  graph.capture([&] { x.add_(1); }, {.warmup = 1, .pool = pool});
  other->capture([&] { x.mul_(2); }, {.warmup = 1, .pool = pool});
  EXPECT_THAT([&] { graph.suspend(); },
              ThrowsMessage<UsageError>(::testing::AllOf(
                  HasSubstr("suspend() was called on a graph that shares its pool with 1 other: a pool sleeps and "
                            "wakes with all of its graphs"),
                  HasSubstr("fix:   call pool.suspend(), of the GraphPool"))));
  EXPECT_FALSE(pool.is_asleep());
  (void)pool.suspend();
  EXPECT_THAT([&] { other->resume(); }, ThrowsMessage<UsageError>(HasSubstr("fix:   call pool.resume()")));
  EXPECT_TRUE(pool.is_asleep());
  pool.resume();
  graph.replay();
  other->replay();
  EXPECT_TRUE(same(x, at::full({8}, 4.0, device())));
  other.reset();
  (void)graph.suspend();
  EXPECT_TRUE(pool.is_asleep()) << "it is alone now";
  graph.resume();
}

TEST_P(PoolSleepTest, AGraphWhosePoolWasNotMadeToSleepIsRefused) {
  const at::Tensor x = at::ones({8}, device());
  Graph graph(device());
  graph.capture([&] { (void)(x + 1); }, {.warmup = 1});
  EXPECT_THAT([&] { graph.suspend(); },
              ThrowsMessage<UsageError>(::testing::AllOf(HasSubstr("a pool that was not made to sleep"),
                                                         HasSubstr("capture graphs into it by their option `pool`"))));
}

TEST_P(PoolSleepTest, AGraphMayEndAsleepAndItsResultLivesOn) {
  std::optional<GraphPool> pool(make_pool());
  const at::Tensor x = at::ones({4 * kFloats}, device());
  at::Tensor result;
  std::optional<Graph> graph(device());
  graph->capture([&] { result = x * 2 + 1; }, {.warmup = 1, .pool = *pool});
  graph->replay();
  pool->suspend();
  graph.reset();
  pool.reset();
  EXPECT_TRUE(same(result, at::full({4 * kFloats}, 3.0, device())));
}

TEST_P(PoolSleepTest, AllPoolsSleepAndWakeTogether) {
  GraphPool one = make_pool(), two = make_pool();
  at::Tensor x = at::ones({4 * kFloats}, device()), y, z;
  Graph first(device()), second(device());
  first.capture([&] { y = x * 2 + 1; }, {.warmup = 1, .pool = one});
  second.capture([&] { z = x * 3 + 1; }, {.warmup = 1, .pool = two});
  first.replay();
  second.replay();
  EXPECT_GE(suspend_all(), 7U << 20U);  // of whole pages, on the tape
  EXPECT_TRUE(one.is_asleep() && two.is_asleep());
  resume_all();
  EXPECT_FALSE(one.is_asleep() || two.is_asleep());
  EXPECT_TRUE(same(y, at::full_like(x, 3.0)));
  EXPECT_TRUE(same(z, at::full_like(x, 4.0)));
}

TEST_P(PoolSleepTest, AThousandSleepsLeaveNothingBehind) {
  GraphPool pool = make_pool();
  at::Tensor x = at::ones({kFloats}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = x.add_(1) * 2; }, {.warmup = 1, .pool = pool});
  const std::size_t bytes = pool.bytes();
  const int sleeps = device().is_cuda() ? 1000 : 100;
  for (int i = 1; i <= sleeps; ++i) {
    graph.replay();
    pool.suspend();
    pool.resume();
    ASSERT_TRUE(same(result, at::full_like(x, 2.0 * (i + 1)))) << i;
  }
  EXPECT_EQ(pool.bytes(), bytes);
}

TEST_P(PoolSleepTest, WhatWasAllocatedIntoThePoolSleepsWithIt) {
  GraphPool pool = make_pool();
  at::Tensor weight;
  {
    const GraphPool::Allocations in_pool(pool);
    weight = at::full({1 << 22}, 3.0, device());
  }
  const at::Tensor outside = at::ones({1 << 22}, device());
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = weight * 2; }, {.warmup = 1, .pool = pool});
  {
    const GraphPool::Allocations in_pool(pool);
    const at::Tensor scratch = at::full({1 << 22}, 5.0, device());
    graph.replay();
    EXPECT_TRUE(same(scratch, at::full_like(scratch, 5.0))) << "no replay writes there";
  }
  const void* const address = weight.const_data_ptr();
  for (int i = 0; i < 3; ++i) {
    const std::size_t went_back = pool.suspend();
    EXPECT_TRUE(!on_cuda() || went_back >= std::size_t{2} << 24U) << "the weight, and the result";
    EXPECT_TRUE(same(outside, at::ones_like(outside)));
    pool.resume();
    EXPECT_EQ(weight.const_data_ptr(), address);
    EXPECT_TRUE(same(weight, at::full_like(weight, 3.0 + i)));
    weight.add_(1);
    graph.replay();
    EXPECT_TRUE(same(result, weight * 2));
  }
}

TEST_P(PoolSleepTest, WhileThreadsAllocateIntoAPoolNothingIsCaptured) {
  GraphPool pool = make_pool();
  Graph graph(device());
  const at::Tensor x = at::ones({4}, device());
  {
    const GraphPool::Allocations in_pool(pool);
    EXPECT_THROW(graph.capture([&] { (void)(x + 1); }), UsageError);
  }
  graph.capture([&] { (void)(x + 1); }, {.pool = pool});
  Graph other(device());
  EXPECT_THROW(other.capture([&] { const GraphPool::Allocations in_pool(pool); }), UsageError);
  (void)pool.suspend();
  EXPECT_THROW(GraphPool::Allocations{pool}, UsageError);
  pool.resume();
  const GraphPool::Allocations in_pool(pool);
}

TEST_P(PoolSleepTest, WhatAllocationsIntoThePoolRefuseNamesThem) {
  GraphPool pool = make_pool();
  Graph graph(device());
  at::Tensor x = at::ones({4}, device());
  const auto capture = [&] { graph.capture([&] { x.add_(1); }, {.warmup = 0, .pool = pool}); };
  const auto expect_named = [](const char* call, const char* where, const std::function<void()>& refused) {
    EXPECT_THAT(refusal<UsageError>(call, refused),
                AllOf(HasSubstr(std::string(call) + " was called on a graph pool " + where + " its allocations()"),
                      HasSubstr("fix:   call it behind the end of GraphPool::Allocations")));
  };
  {
    const GraphPool::Allocations in_pool(pool);
    expect_named("suspend()", "inside of", [&] { (void)pool.suspend(); });
    expect_named("suspend()", "inside of", [] { (void)suspend_all(); });
    expect_named("resume()", "inside of", [&] { pool.resume(); });
    expect_named("allocations()", "inside of", [&] { const GraphPool::Allocations inner(pool); });
    std::thread([&] {
      expect_named("suspend()", "while another thread is inside of", [&] { (void)pool.suspend(); });
      expect_named("capture()", "while another thread is inside of", capture);
    }).join();
    EXPECT_FALSE(pool.is_asleep());
  }
  (void)pool.suspend();
  pool.resume();
  capture();
  graph.replay();
  EXPECT_TRUE(same(x, at::full_like(x, 2.0)));
}

}  // namespace
}  // namespace pianola::testing::pool_sleep_test
