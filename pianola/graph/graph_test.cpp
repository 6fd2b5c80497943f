#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/mm.h>

#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace pianola::graph_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::Training;

static_assert(std::is_nothrow_move_constructible_v<Graph> && !std::is_copy_constructible_v<Graph>);
static_assert(!std::is_move_constructible_v<CaptureScope> && !std::is_copy_constructible_v<CaptureScope>);

class GraphTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(GraphTest);

TEST_P(GraphTest, ReplaysAForwardAsEagerComputesItForChangingInputs) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = at::relu(at::mm(x, w)); });
  for (std::uint64_t step = 0; step < 5; ++step) {
    x.copy_(randn({4, 16}, 10 + step));
    w.mul_(1.25);
    graph.replay();
    EXPECT_TRUE(same(y, at::relu(at::mm(x, w)))) << "step " << step;
  }
}

TEST_P(GraphTest, ReplaysTenTrainingStepsAsEagerRunsThem) {
  Training graphed(device());
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  testing::expect_replays_equal_eager(graph, graphed, 10);
}

TEST_P(GraphTest, ReplaysTheSameWithoutTraceWithoutWarmUpAndOnAPoolOfItsOwn) {
  for (const CaptureOptions& options :
       {CaptureOptions{.trace = false}, CaptureOptions{.warmup = 0}, CaptureOptions{.pool = GraphPool(device())},
        CaptureOptions{.mode = CaptureMode::relaxed}}) {
    Training eager(device()), graphed(device());
    if (options.warmup == 0) Training(device()).step();  // the device's libraries load outside the capture
    Graph graph(device());
    graph.capture([&] { graphed.step(); }, options);
    for (int step = 0; step < 3; ++step) {
      eager.feed(step);
      graphed.feed(step);
      eager.step();
      graph.replay();
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    }
  }
}

TEST_P(GraphTest, RunsTheStepOncePerWarmUpAndOnceToRecord) {
  for (const int warmup : {0, 1, 4}) {
    const at::Tensor x = randn({4});
    int runs = 0;
    Graph graph(device());
    graph.capture([&] { ++runs, x.mul_(2); }, {.warmup = warmup});
    EXPECT_EQ(runs, warmup + 1);
    graph.replay();
    EXPECT_EQ(runs, warmup + 1) << "a replay does not call the step";
  }
}

TEST_P(GraphTest, RecordsOperationsOfNoGradAndGradStepsAlike) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  at::Tensor y, gradient;
  Graph graph(device());
  graph.capture([&] {
    {
      const at::NoGradGuard no_grad;
      y = at::mm(x, w);
    }
    gradient = torch::autograd::grad({at::mm(y, w).sum()}, {w})[0];
  });
  EXPECT_FALSE(y.requires_grad());
  x.copy_(randn({4, 16}, 3));
  graph.replay();
  const at::Tensor expected = at::mm(x, w).detach();
  EXPECT_TRUE(same(y, expected));
  EXPECT_TRUE(same(gradient, torch::autograd::grad({at::mm(expected, w).sum()}, {w})[0]));
}

TEST_P(GraphTest, ReplaysFromAnotherThread) {
  Training eager(device()), graphed(device());
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  for (int step = 0; step < 3; ++step) {
    eager.feed(step);
    graphed.feed(step);
    synchronize();  // the other thread's current stream knows nothing of this one's
    eager.step();
    std::thread([&] {
      graph.replay();
      synchronize();
    }).join();
    expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
  }
}

TEST_P(GraphTest, ReplaysSeveralGraphsAlternately) {
  std::vector<Training> eager, graphed;
  std::vector<Graph> graphs;
  for (int i = 0; i < 4; ++i) {
    eager.emplace_back(device(), 0, 1 + i, 20 + i);
    graphed.emplace_back(device(), 0, 1 + i, 20 + i);
    graphs.emplace_back(device());
  }
  for (std::size_t i = 0; i < graphs.size(); ++i) graphs[i].capture([&] { graphed[i].step(); });
  for (const std::size_t i : {0, 1, 2, 3, 3, 0, 2, 1, 0, 0}) {
    eager[i].step();
    graphs[i].replay();
    expect_same(graphed[i].everything(), eager[i].everything(), "of graph " + std::to_string(i));
  }
}

TEST_P(GraphTest, OneGraphReadsWhatAnotherWrote) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2);
  at::Tensor hidden, y;
  Graph first(device()), second(device());
  first.capture([&] { hidden = at::gelu(at::mm(x, w)); });
  second.capture([&] { y = at::mm(hidden, w); });
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({4, 16}, 10 + step));
    first.replay();
    second.replay();
    EXPECT_TRUE(same(y, at::mm(at::gelu(at::mm(x, w)), w))) << "step " << step;
  }
}

TEST_P(GraphTest, CapturesAgainAfterReset) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = at::mm(x, w); });
  graph.reset();
  EXPECT_FALSE(graph.captured());
  const at::Tensor kept = y;
  graph.capture([&] { y = at::relu(at::mm(w, w)); });
  EXPECT_TRUE(graph.captured());
  const at::Tensor before = kept.clone();
  w.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, at::relu(at::mm(w, w))));
  EXPECT_TRUE(same(kept, before)) << "the first capture's result belongs to its holder";
}

TEST_P(GraphTest, MovesWithItsCapture) {
  const at::Tensor x = randn({4, 16});
  at::Tensor y, z;
  Graph graph(device());
  graph.capture([&] { y = x * 2; });
  Graph moved(std::move(graph));
  EXPECT_FALSE(graph.captured());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved.captured());
  Graph assigned(device());
  assigned.capture([&] { z = x * 3; });
  assigned = std::move(moved);
  x.copy_(randn({4, 16}, 5));
  z.zero_();
  assigned.replay();
  EXPECT_TRUE(same(y, x * 2));
  EXPECT_TRUE(same(z, at::zeros_like(z))) << "the capture that was assigned over is gone";
  EXPECT_EQ(assigned.device(), device());
}

TEST_P(GraphTest, WhatWasMovedFromIsRefused) {
  Graph graph(device());
  const Graph moved_graph(std::move(graph));
  GraphPool pool(device());
  const GraphPool moved_pool(std::move(pool));
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_THAT(refusal<UsageError>("a graph that was moved from", [&] { graph.replay(); }),
              AllOf(HasSubstr("a graph was called that has been moved from"), HasSubstr("moved into")));
  EXPECT_THAT(refusal<UsageError>("a capture by it", [&] { graph.capture([] {}); }), HasSubstr("a graph was called"));
  EXPECT_THAT(refusal<UsageError>("a pool that was moved from", [&] { pool.suspend(); }),
              HasSubstr("a pool was called that has been moved from"));
  EXPECT_NO_THROW(graph.reset());
  // NOLINTEND(bugprone-use-after-move)
}

TEST_P(GraphTest, OutlivesOthersInWhateverOrderTheyGo) {
  for (const auto& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}}) {
    const at::Tensor x = randn({64, 16});
    auto pool = std::make_optional<GraphPool>(device());
    std::vector<std::optional<Graph>> graphs(3);
    std::vector<at::Tensor> y(3);
    for (int i = 0; i < 3; ++i) {
      graphs[i].emplace(device()).capture([&] { y[i] = at::gelu(x * i) + i; }, {.pool = *pool});
    }
    pool.reset();
    for (const int gone : order) {
      x.copy_(randn({64, 16}, 30 + gone));
      for (int i = 0; i < 3; ++i) {
        if (!graphs[i]) continue;
        graphs[i]->replay();
        EXPECT_TRUE(same(y[i], at::gelu(x * i) + i)) << "graph " << i << " before " << gone << " goes";
      }
      graphs[gone].reset();
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i].sizes(), x.sizes());
  }
}

TEST_P(GraphTest, LeavesItsResultsReadableWhenItIsGone) {
  const at::Tensor x = randn({4, 16});
  at::Tensor y;
  {
    Graph graph(device());
    graph.capture([&] { y = x * 2; });
    graph.replay();
  }
  const at::Tensor other = randn({4, 16}, 9);  // would reuse the bytes if they were free
  EXPECT_TRUE(same(y, x * 2));
}

TEST_P(GraphTest, KeepsWhatItReadsUntilReset) {
  at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2);
  const c10::weak_intrusive_ptr<c10::StorageImpl> witness(x.storage().getWeakStorageImpl());
  const at::Tensor expected = at::mm(x, w);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = at::mm(x, w); });
  EXPECT_EQ(graph.info().retained_bytes, x.nbytes() + w.nbytes());
  x.reset();
  w.reset();
  EXPECT_FALSE(witness.expired());
  const at::Tensor other = randn({4, 16}, 9) + randn({4, 16}, 8);
  y.zero_();
  graph.replay();
  EXPECT_TRUE(same(y, expected));
  graph.reset();
  EXPECT_TRUE(witness.expired()) << "reset() lets go of the inputs";
}

#if PIANOLA_WITH_CUDA
TEST_P(GraphTest, ReplaysOnWhicheverStreamIsCurrent) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  Training eager(device()), graphed(device());
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  EXPECT_EQ(c10::cuda::getCurrentCUDAStream(), c10::cuda::getDefaultCUDAStream());
  for (int step = 0; step < 4; ++step) {
    eager.feed(step);
    eager.step();
    graphed.feed(step);
    synchronize();
    {
      const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool());
      graph.replay();
      synchronize();
    }
    expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
  }
}

TEST_P(GraphTest, CapturesOnTheStreamThatIsGiven) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  const at::Tensor x = randn({4, 16});
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  std::vector<c10::cuda::CUDAStream> seen;
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { seen.push_back(c10::cuda::getCurrentCUDAStream()), y = x * 2; }, {.warmup = 1, .stream = stream});
  EXPECT_EQ(seen, (std::vector{stream, stream}));
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
}
#endif

TEST_P(GraphTest, ReplayCopiesSourcesIntoTheInputs) {
  const at::Tensor a = randn({4, 6}), b = randn({4, 6}, 2);
  at::Tensor sum;
  Graph graph(device());
  graph.capture([&] { sum = a - b; }, {.inputs = {a, b}});
  const at::Tensor x = randn({4, 6}, 3), y = randn({4, 6}, 4);
  const auto replay = [&](const at::Tensor& first, const at::Tensor& second) {
    const std::vector<at::Tensor> sources = {first, second};
    graph.replay(sources);
  };
  replay(x, y);
  EXPECT_TRUE(same(sum, x - y));
  replay(y, x);  // other memory each time
  EXPECT_TRUE(same(sum, y - x));
  replay(randn({6, 4}, 5).t(), y.to(at::kDouble));  // another layout, another dtype
  EXPECT_TRUE(same(sum, randn({6, 4}, 5).t() - y));
  replay(x, at::Tensor());
  EXPECT_TRUE(same(sum, x)) << "an undefined source is zeros";
  a.copy_(y);
  replay(a, x);  // written in place, not copied
  EXPECT_TRUE(same(sum, y - x));
  a.copy_(x);
  graph.replay();  // copies nothing: a as written, b as it is
  EXPECT_TRUE(same(sum, x - b));
}

TEST_P(GraphTest, ReplayWithAnotherNumberOfSourcesIsRefused) {
  const at::Tensor a = randn({4});
  Graph graph(device());
  graph.capture([&] { (void)(a + 1); }, {.inputs = {a}});
  EXPECT_THAT(testing::refusal<UsageError>("number of sources", [&] { graph.replay({}); }),
              ::testing::HasSubstr("0 tensors for 1 inputs"));
}

// Of the input's strides, or such as copy_() would repeat.
TEST_P(GraphTest, ReplayWithASourceOfAnotherShapeIsRefused) {
  const at::Tensor a = randn({4, 3});
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = a + 1; }, {.inputs = {a}});
  const at::Tensor before = a.clone();
  for (const at::Tensor& source : {randn({2, 3}), randn({3}), randn({1, 3}), randn({4, 3, 1}), randn({8, 3})}) {
    EXPECT_THAT(testing::refusal<UsageError>("shape of a source", [&] { graph.replay({{source}}); }),
                ::testing::HasSubstr("for input 0, whose shape is [4, 3]; nothing was launched"));
  }
  EXPECT_TRUE(same(a, before));
  const at::Tensor source = randn({4, 3});
  graph.replay({{source}});
  EXPECT_TRUE(same(result, source + 1));
}

}  // namespace
}  // namespace pianola::graph_test
