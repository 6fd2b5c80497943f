#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool_turn.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace pianola::pool_thread_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

// On CUDA the scratch memory of each is that of the others, results too may lie there, and the second reads what the first
// makes.
struct Chain {
  explicit Chain(c10::Device device) : first(device), second(device) {}
  void capture(const GraphPoolRef& pool) {
    first.capture([&] { made = at::gelu(at::mm(at::relu(at::mm(x, w)), w)); }, {.pool = pool});
    second.capture([&] { result.copy_(at::mm(at::relu(at::mm(made, w)), w)); }, {.pool = pool});
  }
  // Another thread's replay may come in between and overwrite what the first has made.
  void replay() {
    for (;;) {
      first.replay();
      try {
        return second.replay();
      } catch (const ReplayError&) {
      }
    }
  }
  [[nodiscard]] at::Tensor eager(const at::Tensor& input) const {
    return at::mm(at::relu(at::mm(at::gelu(at::mm(at::relu(at::mm(input, w)), w)), w)), w);
  }
  Graph first, second;
  at::Tensor x, w, made, result;  // `result` is not the pool's
};

// What threads share that replay, or capture, graphs of one pool, or graphs that draw from one generator.
class PoolThreadTest : public testing::DeviceTest {
 protected:
  static void on_another_thread(const std::function<void()>& work) { std::thread(work).join(); }

  /// Runs `work(0)` and `work(1)` at once, on CUDA each on a stream of its own, until the device has done it. The whole
  /// device cannot be waited for where another thread captures.
  static void on_two_threads(const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (const std::size_t i : {0, 1}) {
      threads.emplace_back([&work, i] {
#if PIANOLA_WITH_CUDA
        std::optional<c10::cuda::CUDAStreamGuard> on;
        if (on_cuda()) on.emplace(c10::cuda::getStreamFromPool());
#endif
        work(i);
#if PIANOLA_WITH_CUDA
        if (on) on->current_stream().synchronize();
#endif
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Two threads replay chains of graphs, while a third captures. @param pool  Gives the pool of each.
  /// @param warmup  Of those captures: a pool that is replayed from cannot be warmed up in.
  void expect_chains_are_right(const std::function<GraphPoolRef()>& pool, int warmup) {
    constexpr int kRounds = 200;
    std::array<Chain, 2> chains = {Chain(device()), Chain(device())};
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < 8; ++i) inputs.push_back(randn({64, 64}, 10 + i));
    for (std::size_t i = 0; i < chains.size(); ++i) {
      chains[i].x = randn({64, 64}, i + 1);
      chains[i].w = randn({64, 64}, i + 3);
      chains[i].result = at::zeros_like(chains[i].x);
      chains[i].capture(pool());
    }
    synchronize();

    std::array<std::vector<at::Tensor>, 2> results;
    int captures = 0;
    at::Tensor z;
    std::jthread capturing([&](const std::stop_token& stop) {
      (void)at::mm(inputs[0], inputs[1]);  // a thread's first product makes a handle, which no capture may do
      while (!stop.stop_requested() || captures == 0) {
        Graph graph(device());
        graph.capture([&] { z = at::mm(inputs[0], inputs[1]); }, {.warmup = warmup, .pool = pool()});
        graph.replay();
        ++captures;
      }
    });
    on_two_threads([&](std::size_t i) {
      Chain& chain = chains[i];
      for (std::size_t round = 0; round < kRounds; ++round) {
        chain.x.copy_(inputs[(round + i) % inputs.size()]);
        chain.replay();
        results[i].push_back(chain.result.clone());
      }
    });
    capturing.request_stop();
    capturing.join();
    synchronize();
    EXPECT_TRUE(same(z, at::mm(inputs[0], inputs[1]))) << "after " << captures << " captures";
    for (std::size_t i = 0; i < chains.size(); ++i) {
      for (std::size_t round = 0; round < kRounds; ++round) {
        ASSERT_TRUE(same(results[i][round], chains[i].eager(inputs[(round + i) % inputs.size()])))
            << "thread " << i << ", round " << round;
      }
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(PoolThreadTest);

TEST_P(PoolThreadTest, TwoThreadsReplayGraphsOfOnePoolWhileAThirdCapturesIntoIt) {
  const GraphPool pool(device());
  expect_chains_are_right([&]() -> GraphPoolRef { return pool; }, /*warmup=*/0);
}

TEST_P(PoolThreadTest, TwoThreadsReplayGraphsOfPoolsOfAFamilyWhileAThirdCapturesIntoAnother) {
  const GraphPoolFamily family;
  expect_chains_are_right([&] { return family.make_pool(device()); }, /*warmup=*/1);
}

TEST_P(PoolThreadTest, TwoThreadsThatReplayDrawFromOneGeneratorWithoutDrawingAnythingTwice) {
  constexpr int kRounds = 300;
  std::array<at::Tensor, 2> drawn;
  std::array<std::optional<Graph>, 2> graphs;
  std::array<std::vector<at::Tensor>, 3> masks;
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    drawn[i] = at::empty({256}, at::TensorOptions(device()));
    graphs[i].emplace(device()).capture([&] { drawn[i].bernoulli_(0.5); });
  }
  synchronize();  // the threads replay on streams of their own
  std::jthread eager([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && masks[2].size() < 2 * kRounds) {
      masks[2].push_back(at::empty({256}, at::TensorOptions(device())).bernoulli_(0.5));
    }
  });
  on_two_threads([&](std::size_t i) {
    for (int round = 0; round < kRounds; ++round) {
      graphs[i]->replay();
      masks[i].push_back(drawn[i].clone());
    }
  });
  eager.request_stop();
  eager.join();
  synchronize();
  std::set<std::string> distinct;
  std::size_t all = 0;
  for (const std::vector<at::Tensor>& of_thread : masks) {
    for (const at::Tensor& mask : of_thread) {
      const at::Tensor host = mask.to(at::kChar).cpu();
      distinct.emplace(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
      ++all;
    }
  }
  EXPECT_GE(all, std::size_t{2} * kRounds);
  EXPECT_EQ(distinct.size(), all);
}

// On CUDA the default generator takes part in every capture, also of a step that draws nothing.
TEST_P(PoolThreadTest, CapturesOfAnotherThreadLeaveTheNumbersOfReplaysAlone) {
  constexpr int kRounds = 200;
  at::Tensor drawn = at::empty({256}, at::TensorOptions(device()));
  Graph graph(device());
  const auto draw = [&] {
    for (int i = 0; i < 8; ++i) drawn.bernoulli_(0.5);
  };
  graph.capture(draw);
  seed(5);
  int captures = 0;
  std::jthread capturing([&](const std::stop_token& stop) {
    const at::Tensor x = randn({64});
    at::Tensor y;
    for (; !stop.stop_requested() || captures == 0; ++captures)
      Graph(device()).capture([&] { y = x * 2; }, {.warmup = 0});
  });
  std::vector<at::Tensor> masks;
  for (int round = 0; round < kRounds; ++round) {
    graph.replay();
    masks.push_back(drawn.clone());
  }
  capturing.request_stop();
  capturing.join();
  synchronize();
  seed(5);
  for (std::size_t round = 0; round < masks.size(); ++round) {
    draw();
    ASSERT_TRUE(same(masks[round], drawn)) << "replay " << round << " beside " << captures << " captures";
  }
}

TEST_P(PoolThreadTest, AReplayIsRefusedWhileAnotherThreadWarmsUpInThePoolAndNotWhileItRecords) {
  const GraphPool pool(device());
  const at::Tensor x = randn({16, 16});
  at::Tensor y, z;
  Graph graph(device()), other(device());
  graph.capture([&] { y = at::mm(x, x); }, {.pool = pool});
  int runs = 0;
  other.capture(
      [&] {
        z = at::mm(x, x) * 2;
        on_another_thread([&] {
          if (++runs == 2) {
            graph.replay();
          } else {
            EXPECT_THAT(
                refusal<UsageError>("a replay while another thread warms up in the pool", [&] { graph.replay(); }),
                AllOf(HasSubstr("while another thread warms up a capture into the graph's pool"),
                      HasSubstr("nothing was launched"), HasSubstr("fix:")));
          }
        });
      },
      {.warmup = 1, .pool = pool});
  EXPECT_EQ(runs, 2);
  synchronize();
  EXPECT_TRUE(same(y, at::mm(x, x)));
  x.add_(1);
  other.replay();
  graph.replay();
  EXPECT_TRUE(same(y, at::mm(x, x)));
  EXPECT_TRUE(same(z, at::mm(x, x) * 2));
}

TEST_P(PoolThreadTest, APoolIsReplayedFromWhileAnotherOneOfItsFamilyWarmsUp) {
  const GraphPoolFamily family;
  const at::Tensor x = randn({16, 16});
  at::Tensor y, z;
  Graph graph(device()), other(device());
  graph.capture([&] { y = at::mm(x, x); }, {.pool = family.make_pool(device())});
  other.capture(
      [&] {
        z = at::mm(x, x) * 2;
        on_another_thread([&] { graph.replay(); });
      },
      {.warmup = 1, .pool = family.make_pool(device())});
  other.replay();
  synchronize();
  EXPECT_TRUE(same(y, at::mm(x, x)));
  EXPECT_TRUE(same(z, at::mm(x, x) * 2));
}

TEST_P(PoolThreadTest, OneThreadAtATimeCapturesIntoAPool) {
  const GraphPool pool(device());
  const at::Tensor x = randn({16});
  at::Tensor y, z;
  Graph first(device()), second(device()), failing(device());
  const auto capture_second = [&] { second.capture([&] { z = x * 3; }, {.warmup = 0, .pool = pool}); };
  {
    CaptureScope scope(first, {.warmup = 0, .pool = pool});
    y = x * 2;
    on_another_thread([&] {
      EXPECT_THAT(refusal<UsageError>("a capture into a pool that another thread captures into", capture_second),
                  AllOf(HasSubstr("capture() was called on a graph pool while another thread is in a call of it"),
                        HasSubstr("fix:")));
    });
    scope.end();
  }
  const auto fail = [] { throw std::out_of_range("mine"); };
  for (const int warmup : {0, 1}) {
    EXPECT_THROW(failing.capture(fail, {.warmup = warmup, .pool = pool}), std::out_of_range);
  }
  on_another_thread([&] {
    capture_second();
    first.replay();
  });
  second.replay();
  synchronize();
  EXPECT_TRUE(same(y, x * 2));
  EXPECT_TRUE(same(z, x * 3));
}

TEST_P(PoolThreadTest, ACaptureThatIsDroppedOnAnotherThreadLetsGoOfItsPool) {
  if (on_cuda()) GTEST_SKIP() << "the stream's capture would stay open";
  const GraphPool pool(device());
  at::Tensor x = randn({8}), y;
  Graph graph(device());
  std::unique_ptr<CaptureScope> scope;
  on_another_thread([&] { scope = std::make_unique<CaptureScope>(graph, CaptureOptions{.warmup = 0, .pool = pool}); });
  scope.reset();
  Graph other(device());
  other.capture([&] { y = x * 2; }, {.pool = pool});
  other.replay();
  EXPECT_TRUE(same(y, x * 2));
}

TEST(PoolTurn, WhatThreadsAskAndSignInATurnIsWhole) {
  graph::PoolOrder order;
  graph::PoolTurns turns(order);
  graph::PoolLedger::GraphId maker = 0, reader = 0, spoiler = 0;
  {
    const graph::PoolTurn turn(turns);
    maker = turn.ledger().add({{0, 100}}, {});
    reader = turn.ledger().add({}, {{0, 100}});
    spoiler = turn.ledger().add({{0, 100}}, {});
  }
  std::atomic<int> wrong{0};
  const auto replay = [&] {
    for (int i = 0; i < 20000; ++i) {
      const graph::PoolTurn turn(turns);
      const bool spoils = i % 2 == 0;
      turn.ledger().sign(spoils ? spoiler : maker);
      if (turn.ledger().overwritten_by(reader) != (spoils ? spoiler : 0)) ++wrong;
    }
  };
  const auto capture = [&] {
    for (int i = 0; i < 2000; ++i) {
      const auto added = graph::PoolTurn(turns).ledger().add({{200, 300}}, {{0, 50}});
      if (!graph::PoolTurn(turns).ledger().owns(250)) ++wrong;
      graph::PoolTurn(turns).ledger().remove(added);
    }
  };
  std::vector<std::thread> threads;
  for (const std::function<void()>& work : std::vector<std::function<void()>>{replay, replay, capture}) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace pianola::pool_thread_test
