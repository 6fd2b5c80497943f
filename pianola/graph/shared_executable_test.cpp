// Graphs of a pool that share executables. The tape takes the option, and has none to share.
#include <pianola/core/error.hpp>
#include <pianola/graph/account/graph_memory.hpp>
#include <pianola/graph/eager.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/number.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#if PIANOLA_WITH_CUDA
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::testing::shared_executable_test {
namespace {

using ::testing::HasSubstr;

struct UserError {};

/// A step on tensors of its own: the same kernels for each of one size. `more` adds some.
struct Step {
  Step(std::int64_t size, std::uint64_t seed, c10::Device device, bool more = false)
      : x(values(size, seed, device)), w(values(size, seed + 100, device)), graph(device), has_more(more) {}
  static at::Tensor values(std::int64_t size, std::uint64_t seed, c10::Device device) {
    return at::randn({size}, at::make_generator<at::CPUGeneratorImpl>(seed)).to(device);
  }
  [[nodiscard]] at::Tensor run() const {
    const at::Tensor first = at::gelu(x * w + 1);
    return has_more ? at::relu(first - w) * 2 : first;
  }
  void capture(const GraphPool& pool, bool with_input = false, bool instantiate = true) {
    CaptureOptions options = {.warmup = 1, .pool = pool, .instantiate = instantiate};
    if (with_input) options.inputs = {x};
    graph.capture([this] { result = run(); }, options);
  }
  void expect_right(const std::string& when) {
    x.add_(0.5);
    graph.replay();
    EXPECT_TRUE(same(result, run())) << when;
  }

  at::Tensor x, w, result;
  Graph graph;
  bool has_more;
};

class SharedExecutableTest : public DeviceTest {
 protected:
  static GraphPool make_pool() { return {device(), {.share_executables = true}}; }
  static std::string on(const std::string& title) { return title + ", on " + GetParam(); }

  // On CUDA; on the tape nobody has one.
  static void expect_shared(const Graph& one, const Graph& other) {
    EXPECT_EQ(one.info().shares_executable, on_cuda());
    EXPECT_EQ(other.info().shares_executable, on_cuda());
    EXPECT_EQ(one.raw_executable(), other.raw_executable());
    EXPECT_EQ(one.raw_executable() != nullptr, on_cuda());
  }
  static void expect_apart(const Graph& one, const Graph& other) {
    EXPECT_FALSE(one.info().shares_executable);
    EXPECT_FALSE(other.info().shares_executable);
    EXPECT_EQ(one.raw_executable() != other.raw_executable(), on_cuda());
  }
};
PIANOLA_ON_EVERY_DEVICE(SharedExecutableTest);

TEST_P(SharedExecutableTest, AlternatingReplaysAreEagersBitForBit) {
  const GraphPool pool = make_pool();
  std::deque<Step> steps;
  for (std::uint64_t i = 0; i < 4; ++i) steps.emplace_back(1 << 12, i, device()).capture(pool);
  for (std::size_t i = 1; i < steps.size(); ++i) expect_shared(steps[0].graph, steps[i].graph);
  for (std::size_t round = 0; round < 100; ++round) {
    const std::size_t i = round * 7 % 11 % steps.size();
    steps[i].expect_right("round " + std::to_string(round));
  }
}

TEST_P(SharedExecutableTest, ThreeGraphsOfTwoStepsHaveTwoExecutables) {
  const GraphPool pool = make_pool();
  Step first(1 << 10, 1, device()), other(1 << 10, 2, device(), /*more=*/true), second(1 << 10, 3, device());
  for (Step* const one : {&first, &other, &second}) one->capture(pool);
  expect_shared(first.graph, second.graph);
  EXPECT_FALSE(other.graph.info().shares_executable);
  if (on_cuda()) {
    EXPECT_NE(other.graph.raw_executable(), first.graph.raw_executable());
  }
  for (int round = 0; round < 20; ++round) {
    for (Step* const one : {&first, &other, &second}) one->expect_right(std::to_string(round));
  }
}

TEST_P(SharedExecutableTest, ReplaysThatNobodyWaitsForKeepTheirParameters) {
  const GraphPool pool = make_pool();
  Step one(1 << 20, 1, device()), other(1 << 20, 2, device());
  for (Step* const step : {&one, &other}) step->capture(pool);
  std::vector<at::Tensor> results, expected;
  for (int i = 0; i < 60; ++i) {
    Step& step = i % 2 == 0 ? one : other;
    step.x.add_(1);
    step.graph.replay();
    results.push_back(step.result.clone());
    expected.push_back(step.x.clone());
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Step& step = i % 2 == 0 ? one : other;
    EXPECT_TRUE(same(results[i], at::gelu(expected[i] * step.w + 1))) << i;
  }
}

TEST_P(SharedExecutableTest, GraphsOfOtherPoolsShareNothing) {
  const GraphPool pool = make_pool(), other_pool = make_pool(), plain(device());
  Step one(64, 1, device()), other(64, 2, device()), third(64, 3, device()), fourth(64, 4, device());
  one.capture(pool);
  other.capture(other_pool);
  third.capture(plain);
  fourth.capture(plain);
  expect_apart(one.graph, other.graph);
  expect_apart(third.graph, fourth.graph);
}

TEST_P(SharedExecutableTest, InputsAreCopiedForTheGraphThatIsReplayed) {
  const GraphPool pool = make_pool();
  Step one(256, 1, device()), other(256, 2, device()), without(256, 3, device());
  one.capture(pool, /*with_input=*/true);
  other.capture(pool, /*with_input=*/true);
  without.capture(pool);
  expect_shared(one.graph, other.graph);
  EXPECT_FALSE(without.graph.info().shares_executable) << "it has one node less";
  const at::Tensor wide = randn({256, 2}, 9);
  const std::vector<at::Tensor> sources = {randn({256}, 5), randn({256}, 6), wide.select(1, 0), at::Tensor()};
  for (std::size_t round = 0; round < 40; ++round) {
    Step& step = round % 3 == 0 ? one : other;
    const at::Tensor& source = sources[round / 2 % sources.size()];
    const std::array<at::Tensor, 1> given = {source};
    step.graph.replay(given);
    EXPECT_TRUE(same(step.x, source.defined() ? source.contiguous() : at::zeros({256}, device()))) << round;
    EXPECT_TRUE(same(step.result, step.run())) << round;
    if (round % 5 == 0) {
      step.expect_right("what was copied before is not copied again, " + std::to_string(round));
      without.expect_right(std::to_string(round));
    }
  }
}

TEST_P(SharedExecutableTest, SourcesInAPoolThatMaySleepAreCopiedToo) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  const GraphPool pool = make_pool();
  GraphPool sleeping(device(), {.can_sleep = true});
  std::vector<at::Tensor> mapped;
  {
    const GraphPool::Allocations inside(sleeping);
    for (std::uint64_t i = 0; i < 2; ++i) mapped.push_back(randn({256}, 20 + i));
  }
  Step one(256, 1, device()), other(256, 2, device());
  for (Step* const step : {&one, &other}) step->capture(pool, /*with_input=*/true);
  for (std::size_t round = 0; round < 8; ++round) {
    Step& step = round % 2 == 0 ? one : other;
    const std::array<at::Tensor, 1> given = {mapped[round / 2 % 2]};
    step.graph.replay(given);
    EXPECT_TRUE(same(step.x, given[0])) << round;
    EXPECT_TRUE(same(step.result, step.run())) << round;
  }
}

TEST_P(SharedExecutableTest, TrainingsThatAlternateAreEagers) {
  const GraphPool pool = make_pool();
  std::deque<Training> graphed, eager;
  std::deque<Graph> graphs;
  for (std::uint64_t i = 0; i < 2; ++i) {
    Training& one = graphed.emplace_back(device(), 0.2, 2, 7 + i);
    eager.emplace_back(device(), 0.2, 2, 7 + i);
    graphs.emplace_back(device()).capture([&one] { one.step(); }, {.warmup = 2, .pool = pool});
  }
  expect_shared(graphs[0], graphs[1]);
  for (int step = 0; step < 12; ++step) {
    const std::size_t i = step % 3 == 0 ? 0 : 1;
    for (Training* const one : {&graphed[i], &eager[i]}) one->feed(step);
    seed(static_cast<std::uint64_t>(step));
    graphs[i].replay();
    seed(static_cast<std::uint64_t>(step));
    eager[i].step();
    expect_same(graphed[i].everything(), eager[i].everything(), "in step " + std::to_string(step));
  }
}

TEST_P(SharedExecutableTest, TheGraphThatItWasMadeOfMayEndBeforeTheOthers) {
  const GraphPool pool = make_pool();
  std::optional<Step> maker(std::in_place, 1 << 12, 1, device());
  Step one(1 << 12, 2, device()), other(1 << 12, 3, device());
  maker->capture(pool, /*with_input=*/true);
  for (Step* const step : {&one, &other}) step->capture(pool, /*with_input=*/true);
  maker->expect_right("before");
  const std::size_t bytes = one.graph.memory().pool.executables.device;
  maker.reset();
  expect_shared(one.graph, other.graph);
  EXPECT_EQ(one.graph.memory().pool.executables.device, bytes) << "it is counted for another";
  for (int round = 0; round < 6; ++round) {
    for (Step* const step : {&one, &other}) {
      const std::array<at::Tensor, 1> given = {randn({1 << 12}, 50 + round)};
      step->graph.replay(given);
      EXPECT_TRUE(same(step->result, step->run())) << round;
      step->expect_right(std::to_string(round));
    }
  }
  one.graph.reset();
  EXPECT_FALSE(other.graph.info().shares_executable);
  other.expect_right("alone");
  one.capture(pool, /*with_input=*/true);
  expect_shared(one.graph, other.graph);
  one.expect_right("anew");
}

TEST_P(SharedExecutableTest, AccountsCountItOnce) {
  const GraphPool pool = make_pool();
  std::deque<Step> steps;
  for (std::uint64_t i = 0; i < 3; ++i) steps.emplace_back(64, i, device()).capture(pool);
  const PoolMemory of_pool = steps[0].graph.memory().pool;
  EXPECT_EQ(of_pool.graphs, 3U);
  ExecutableMemory sum;
  std::size_t told = 0;
  for (Step& step : steps) {
    EXPECT_EQ(step.graph.memory().shares_executable, on_cuda());
    sum += step.graph.memory().executable;
    told += step.graph.info().executable_bytes;
  }
  EXPECT_EQ(sum.device, of_pool.executables.device);
  EXPECT_EQ(sum.host, of_pool.executables.host);
  EXPECT_EQ(told, of_pool.executables.device);
  EXPECT_EQ(steps[1].graph.memory().executable.host + steps[2].graph.memory().executable.host, 0U);
  EXPECT_THAT(steps[0].graph.info().report().to_text(), HasSubstr("shared with other graphs"));
}

TEST_P(SharedExecutableTest, AnUpdateGivesItToTheNewCaptureAndLeavesTheOthers) {
  const GraphPool pool = make_pool();
  Step one(512, 1, device()), other(512, 2, device()), next(512, 3, device());
  for (Step* const step : {&one, &other}) step->capture(pool);
  one.graph.update([&] { next.result = next.run(); });
  expect_shared(one.graph, other.graph);
  EXPECT_EQ(one.graph.memory().pool.graphs, 2U);
  for (int round = 0; round < 5; ++round) {
    next.x.add_(1);
    one.graph.replay();
    EXPECT_TRUE(same(next.result, next.run())) << round;
    other.expect_right(std::to_string(round));
  }
  Step longer(512, 4, device(), /*more=*/true);
  EXPECT_THAT(refusal<CaptureError>(on("an update of a sharing graph to another step"),
                                    [&] { one.graph.update([&] { longer.result = longer.run(); }); }),
              HasSubstr("update()"));
  one.graph.replay();
  EXPECT_TRUE(same(next.result, next.run())) << "the earlier capture stays";
  other.expect_right("after the refusal");
}

TEST_P(SharedExecutableTest, PoolsSleepWithItAndWithoutIt) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true, .share_executables = true});
  std::deque<Step> steps;
  for (std::uint64_t i = 0; i < 3; ++i) steps.emplace_back(512, i, device()).capture(pool, /*with_input=*/true);
  for (const bool keep : {true, false, false}) {
    (void)pool.suspend({.keep_executables = keep});
    EXPECT_EQ(steps[0].graph.raw_executable() != nullptr, on_cuda() && keep);
    if (!keep) {
      EXPECT_EQ(steps[0].graph.memory().pool.executables.device, 0U);
    }
    EXPECT_THAT(refusal<UsageError>(on("a replay of a sharing graph asleep"), [&] { steps[1].graph.replay(); }),
                HasSubstr("a graph whose pool is asleep"));
    pool.resume();
    expect_shared(steps[0].graph, steps[2].graph);
    ExecutableMemory sum;
    for (Step& step : steps) sum += step.graph.memory().executable;
    EXPECT_EQ(sum.device, steps[0].graph.memory().pool.executables.device);
    for (std::size_t round = 0; round < 9; ++round) {
      Step& step = steps[round % steps.size()];
      const std::array<at::Tensor, 1> given = {randn({512}, 70 + round)};
      step.graph.replay(given);
      EXPECT_TRUE(same(step.result, step.run())) << round;
    }
  }
  (void)pool.suspend({.keep_executables = false});
  steps.pop_front();  // of which it was made
  pool.resume();
  for (Step& step : steps) step.expect_right("without the first graph");
}

TEST_P(SharedExecutableTest, ACaptureThatFailsLeavesTheOthers) {
  const GraphPool pool = make_pool();
  Step one(512, 1, device()), other(512, 2, device());
  one.capture(pool);
  for (int i = 0; i < 5; ++i) {
    Graph failing(device());
    int runs = 0;
    EXPECT_THROW(failing.capture(
                     [&] {
                       (void)other.run();
                       if (++runs == 2) throw UserError();
                     },
                     {.warmup = 1, .pool = pool}),
                 UserError);
    EXPECT_FALSE(one.graph.info().shares_executable);
    one.expect_right(std::to_string(i));
  }
  other.capture(pool);
  expect_shared(one.graph, other.graph);
  other.expect_right("after the failures");
  one.expect_right("after the failures");
}

TEST_P(SharedExecutableTest, ItIsSharedFromTheFirstInstantiationOn) {
  const GraphPool pool = make_pool();
  Step one(512, 1, device()), other(512, 2, device()), third(512, 3, device());
  one.capture(pool, false, /*instantiate=*/false);
  other.capture(pool, false, /*instantiate=*/false);
  third.capture(pool);
  EXPECT_EQ(one.graph.raw_executable(), nullptr);
  EXPECT_FALSE(third.graph.info().shares_executable);
  one.graph.instantiate();
  expect_shared(one.graph, third.graph);
  other.expect_right("which makes it share");
  expect_shared(other.graph, third.graph);
  third.graph.instantiate();  // anew, of what is as it was
  expect_shared(other.graph, third.graph);
  for (Step* const step : {&third, &one, &other}) step->expect_right("in turn");
}

TEST_P(SharedExecutableTest, GraphsWithNumbersKeepTheirOwn) {
  const GraphPool pool = make_pool();
  std::deque<Graph> graphs;
  std::vector<at::Tensor> weights, twins;
  std::vector<Number> rates;
  const at::Tensor gradient = randn({64}, 2);
  for (std::uint64_t i = 0; i < 2; ++i) {
    weights.push_back(randn({64}, i));
    twins.push_back(weights.back().clone());
    Graph& graph = graphs.emplace_back(device());
    rates.push_back(graph.number("rate", 0.1));
    graph.capture([&, i] { weights[i].sub_(gradient * rates[i]); }, {.pool = pool});
  }
  expect_apart(graphs[0], graphs[1]);
  for (const double value : {0.5, -2.0}) {
    for (std::size_t i = 0; i < 2; ++i) {
      rates[i].set(value + static_cast<double>(i));
      graphs[i].replay();
      twins[i].sub_(gradient * (value + static_cast<double>(i)));
      EXPECT_TRUE(same(weights[i], twins[i])) << value;
    }
  }
}

TEST_P(SharedExecutableTest, GraphsWithPartsThatStayEagerKeepTheirOwn) {
  const GraphPool pool = make_pool();
  const EagerPart part = eager([](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
    return {given[0].sum().item<float>() > 20 ? given[0] * 2 : given[0] * 3};
  });
  std::vector<at::Tensor> inputs = {at::ones({8}, device()), at::ones({8}, device())}, results(2);
  std::deque<Graph> graphs;
  for (std::size_t i = 0; i < 2; ++i) {
    graphs.emplace_back(device()).capture([&, i] { results[i] = part({inputs[i] + 1})[0] - 1; },
                                          {.warmup = 1, .pool = pool});
  }
  for (const int value : {0, 1, 2, 3}) {
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_FALSE(graphs[i].info().shares_executable);
      inputs[i].fill_(value);
      graphs[i].replay();
      EXPECT_TRUE(same(results[i], (inputs[i] + 1) * (value > 1 ? 2 : 3) - 1)) << value;
    }
  }
}

TEST_P(SharedExecutableTest, GraphsInLanesKeepTheirOwn) {
  const GraphPool pool = make_pool();
  std::deque<Training> graphed, eager;
  std::deque<Graph> graphs;
  for (std::uint64_t i = 0; i < 2; ++i) {
    Training& one = graphed.emplace_back(device(), 0, 2, 7 + i);
    eager.emplace_back(device(), 0, 2, 7 + i);
    graphs.emplace_back(device()).capture([&one] { one.step(); }, {.warmup = 2, .pool = pool, .branches = 4});
  }
  for (const Graph& graph : graphs) {
    const GraphInfo info = graph.info();
    EXPECT_TRUE(!info.branches->rebuilt || !info.shares_executable);
  }
  for (int step = 0; step < 6; ++step) {
    const std::size_t i = step % 3 == 0 ? 0 : 1;
    for (Training* const one : {&graphed[i], &eager[i]}) one->feed(step);
    graphs[i].replay();
    eager[i].step();
    expect_same(graphed[i].everything(), eager[i].everything(), "in step " + std::to_string(step));
  }
}

TEST_P(SharedExecutableTest, ThreadsReplayGraphsThatShareIt) {
  const GraphPool pool = make_pool();
  std::deque<Step> steps;
  for (std::uint64_t i = 0; i < 2; ++i) steps.emplace_back(1 << 12, i, device()).capture(pool, /*with_input=*/true);
  expect_shared(steps[0].graph, steps[1].graph);
  std::array<std::vector<at::Tensor>, 2> sources, copied;
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::uint64_t k = 0; k < 4; ++k) sources[i].push_back(randn({1 << 12}, 10 * i + k + 1));
  }
  synchronize();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
#if PIANOLA_WITH_CUDA
      std::optional<c10::cuda::CUDAStreamGuard> stream;
      if (on_cuda()) stream.emplace(c10::cuda::getStreamFromPool());
#endif
      for (std::size_t round = 0; round < 300; ++round) {
        const std::array<at::Tensor, 1> given = {sources[i][round % 4]};
        steps[i].graph.replay(given);
        copied[i].push_back(steps[i].x.clone());  // memory of its own, which no other replay writes
      }
#if PIANOLA_WITH_CUDA
      if (stream) stream->current_stream().synchronize();
#endif
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t round = 0; round < copied[i].size(); ++round) {
      ASSERT_TRUE(same(copied[i][round], sources[i][round % 4])) << "thread " << i << ", round " << round;
    }
    steps[i].expect_right("after the threads");
  }
}

TEST_P(SharedExecutableTest, TheGraphThatItWasMadeOfIsLookedAtWhileOthersCopyByIt) {
  const GraphPool pool = make_pool();
  Step maker(256, 1, device()), other(256, 2, device());
  for (Step* const step : {&maker, &other}) step->capture(pool, /*with_input=*/true);
  const std::array<std::array<at::Tensor, 1>, 2> given = {{{randn({256}, 3)}, {randn({256}, 4)}}};
  synchronize();
  std::jthread looking([&](const std::stop_token& stop) {
    std::size_t nodes = 0;
    while (!stop.stop_requested()) {
      const std::size_t now = maker.graph.info().nodes;
      if (nodes != 0) {
        EXPECT_EQ(now, nodes);
      }
      nodes = now;
    }
  });
  for (std::size_t round = 0; round < 300; ++round) {
    other.graph.replay(given[round % 2]);
    if (round % 50 == 0) {
      EXPECT_TRUE(same(other.x, given[round % 2][0])) << round;
    }
  }
  looking.request_stop();
  looking.join();
  other.expect_right("after that");
  maker.expect_right("after that");
}

TEST_P(SharedExecutableTest, GraphsEndWhileTheirPoolSleepsAndWakes) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true, .share_executables = true});
  std::deque<Step> steps;
  for (std::uint64_t i = 0; i < 32; ++i) steps.emplace_back(512, i, device()).capture(pool, /*with_input=*/true);
  expect_shared(steps.front().graph, steps.back().graph);
  std::atomic<int> rounds = 0;
  std::jthread sleeping([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      (void)pool.suspend({.keep_executables = false});
      pool.resume();
      ++rounds;
    }
  });
  for (std::size_t i = 0; i + 2 < steps.size(); ++i) {
    for (const int before = rounds; i % 8 == 0 && rounds == before;) std::this_thread::yield();
    steps[i].graph.reset();
  }
  sleeping.request_stop();
  sleeping.join();
  const PoolMemory memory = steps.back().graph.memory().pool;
  EXPECT_EQ(memory.graphs, 2U);
  ExecutableMemory sum;
  for (Step* const step : {&steps.back(), &steps[steps.size() - 2]}) {
    step->expect_right("with those that are left");
    sum += step->graph.memory().executable;
  }
  EXPECT_EQ(sum.host, memory.executables.host);
  EXPECT_EQ(sum.device, memory.executables.device);
}

#if PIANOLA_WITH_CUDA
// As a tool would: the executable that it shares does not take it any more.
void add_node(Graph& graph) {
  CUgraphNode node = nullptr;
  check(Driver::get().graph_add_empty_node(&node, static_cast<CUgraph>(graph.raw_graph()), nullptr, 0),
        "cuGraphAddEmptyNode");
}

TEST_P(SharedExecutableTest, AGraphWithItsOwnNowCopiesFromWhereItCopiedBefore) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has no executables";
  const GraphPool pool = make_pool();
  Step one(512, 1, device()), other(512, 2, device());
  for (Step* const step : {&one, &other}) step->capture(pool, /*with_input=*/true);
  const std::array<at::Tensor, 1> given = {randn({512}, 30)};
  one.graph.replay(given);
  other.expect_right("it has the executable");
  add_node(one.graph);
  one.expect_right("with its own, which copies nothing yet");
  EXPECT_FALSE(one.graph.info().shares_executable);
  one.graph.replay(given);
  EXPECT_TRUE(same(one.x, given[0]));
  EXPECT_TRUE(same(one.result, one.run()));
}

TEST_P(SharedExecutableTest, AGraphOfWhichTwoWereMadeMayEndBeforeTheOthers) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has no executables";
  const GraphPool pool = make_pool();
  Step maker(512, 1, device()), other(512, 2, device()), third(512, 3, device());
  for (Step* const step : {&maker, &other, &third}) step->capture(pool, /*with_input=*/true);
  for (Step* const changed : {&maker, &other}) {
    add_node(changed->graph);
    changed->graph.instantiate();
  }
  expect_shared(maker.graph, other.graph);
  EXPECT_NE(other.graph.raw_executable(), third.graph.raw_executable()) << "which was made of the maker as it was";
  maker.graph.reset();
  for (std::uint64_t round = 0; round < 4; ++round) {
    for (Step* const step : {&other, &third}) {
      const std::array<at::Tensor, 1> given = {randn({512}, 40 + round)};
      step->graph.replay(given);
      EXPECT_TRUE(same(step->x, given[0])) << round;
      EXPECT_TRUE(same(step->result, step->run())) << round;
      step->expect_right(std::to_string(round));
    }
  }
}

// As where there is no room to give it the parameters: here a tool has changed the captured graph.
TEST_P(SharedExecutableTest, AGraphThatItNoLongerTakesGoesOnWithItsOwn) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has no executables";
  const GraphPool pool = make_pool();
  Step maker(512, 1, device()), other(512, 2, device()), third(512, 3, device());
  for (Step* const step : {&maker, &other, &third}) step->capture(pool, /*with_input=*/true);
  for (Step* const changed : {&maker, &other}) {
    third.expect_right("before");
    add_node(changed->graph);
    const std::array<at::Tensor, 1> given = {randn({512}, 30)};
    changed->graph.replay(given);
    EXPECT_TRUE(same(changed->x, given[0]));
    EXPECT_TRUE(same(changed->result, changed->run()));
    EXPECT_FALSE(changed->graph.info().shares_executable);
    EXPECT_NE(changed->graph.raw_executable(), third.graph.raw_executable());
    changed->expect_right("with its own");
    third.expect_right("with the one that was shared");
  }
  ExecutableMemory sum;
  for (Step* const step : {&maker, &other, &third}) sum += step->graph.memory().executable;
  EXPECT_EQ(sum.host, third.graph.memory().pool.executables.host);
  maker.graph.reset();  // by whose nodes the third's knows its own
  const std::array<at::Tensor, 1> given = {randn({512}, 31)};
  third.graph.replay(given);
  EXPECT_TRUE(same(third.result, third.run()));
}
#endif

}  // namespace
}  // namespace pianola::testing::shared_executable_test
