#include <pianola/graph/pool.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/mm.h>

#include <optional>
#include <string>
#include <vector>

namespace pianola::pool_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::Training;

class PoolTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(PoolTest);

TEST_P(PoolTest, IsEmptyWhereNoneIsNamed) {
  EXPECT_TRUE(GraphPoolRef().empty());
  const GraphPool pool(device());
  EXPECT_FALSE(GraphPoolRef(pool).empty());
  EXPECT_EQ(pool.device(), device());
  EXPECT_EQ(pool.bytes(), 0U);
}

TEST_P(PoolTest, GraphsReadEachOthersResults) {
  const GraphPool pool(device());
  const at::Tensor x = randn({32, 16}), w = randn({16, 16}, 2);
  at::Tensor hidden, y, z;
  Graph first(device()), second(device()), third(device());
  first.capture([&] { hidden = at::gelu(at::mm(x, w)); }, {.pool = pool});
  second.capture([&] { y = at::mm(hidden, w); }, {.pool = pool});
  third.capture([&] { z = at::relu(hidden + y); }, {.pool = pool});
  for (std::uint64_t step = 0; step < 4; ++step) {
    x.copy_(randn({32, 16}, 10 + step));
    first.replay();
    second.replay();
    if (step % 2 == 0) second.replay();
    third.replay();
    const at::Tensor expected = at::gelu(at::mm(x, w));
    EXPECT_TRUE(same(hidden, expected)) << "step " << step;
    EXPECT_TRUE(same(y, at::mm(expected, w))) << "step " << step;
    EXPECT_TRUE(same(z, at::relu(expected + at::mm(expected, w)))) << "step " << step;
  }
}

TEST_P(PoolTest, TrainsTwoModelsInOnePoolInAnyOrder) {
  std::vector<Training> eager, graphed;
  for (std::uint64_t i = 0; i < 2; ++i) {
    eager.emplace_back(device(), 0, 2, 30 + i);
    graphed.emplace_back(device(), 0, 2, 30 + i);
  }
  Graph first(device()), second(device());
  first.capture([&] { graphed[0].step(); });
  second.capture([&] { graphed[1].step(); }, {.pool = first.pool()});
  for (const std::size_t i : {0, 1, 1, 0, 1, 0, 0}) {
    eager[i].step();
    (i == 0 ? first : second).replay();
    expect_same(graphed[i].everything(), eager[i].everything(), "of model " + std::to_string(i));
  }
}

TEST_P(PoolTest, OutlivesItsHandleAndTheGraphThatMadeAResult) {
  const at::Tensor x = randn({32, 16}), w = randn({16, 16}, 2);
  at::Tensor hidden, y, z;
  Graph second(device());
  {
    const GraphPool pool(device());
    Graph first(device());
    first.capture([&] { hidden = at::gelu(at::mm(x, w)); }, {.pool = pool});
    second.capture([&] { y = at::mm(hidden, w); }, {.pool = pool});
    first.replay();
  }
  const at::Tensor expected = at::mm(at::gelu(at::mm(x, w)), w);
  second.replay();
  EXPECT_TRUE(same(y, expected)) << "reads the last result of a graph that is gone";
  Graph third(device());
  third.capture([&] { z = y * 2; }, {.pool = second.pool()});
  third.replay();
  EXPECT_TRUE(same(z, expected * 2));
}

TEST_P(PoolTest, CountsTheBytesOfAllItsGraphs) {
  const GraphPool pool(device());
  const at::Tensor x = randn({1 << 20});
  at::Tensor y, z;
  Graph first(device());
  first.capture([&] { y = x * 2; }, {.pool = pool});
  const std::size_t one = pool.bytes();
  EXPECT_GE(one, y.nbytes());
  EXPECT_EQ(first.info().pool_bytes, one);
  Graph second(device());
  second.capture([&] { z = y * 3; }, {.pool = pool});
  EXPECT_GE(pool.bytes(), y.nbytes() + z.nbytes());
  EXPECT_EQ(second.info().pool_bytes, pool.bytes());
  if (on_cuda()) return;  // there the pool keeps what it has for the next capture
  second.reset();
  EXPECT_EQ(pool.bytes(), one);
  first.reset();
  EXPECT_EQ(pool.bytes(), 0U);
}

TEST_P(PoolTest, RefusesAPoolOfAnotherDevice) {
  if (!on_cuda()) GTEST_SKIP() << "needs two kinds of device";
  const GraphPool cpu(c10::kCPU), cuda(device());
  at::Tensor x = randn({4});
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("a pool on the cpu for a graph on cuda",
                                  [&] { graph.capture([&] { x.mul_(2); }, {.pool = cpu}); }),
              AllOf(HasSubstr("the pool is on cpu"), HasSubstr("cuda:0")));
  x = x.cpu();
  Graph tape(c10::kCPU);
  EXPECT_THAT(refusal<UsageError>("a pool on cuda for a graph on the cpu",
                                  [&] { tape.capture([&] { x.mul_(2); }, {.pool = cuda}); }),
              AllOf(HasSubstr("the pool is on cuda:0"), HasSubstr("cpu")));
}

// A makes a result, B reads it; then it is dropped, and C, captured after that, gets its bytes on CUDA.
class ReplayOrderTest : public PoolTest {
 protected:
  static constexpr std::int64_t kElements = 1 << 20;

  void SetUp() override {
    PoolTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    pool.emplace(device());
    x = randn({kElements});
    for (auto& graph : graphs) graph.emplace(device());
    at::Tensor made;
    a().capture([&] { made = x * 2; }, {.pool = *pool});
    b().capture([&] { read = made + 1; }, {.pool = *pool});
    const void* address = made.data_ptr();
    made.reset();
    c().capture([&] { reused = x * 3; }, {.pool = *pool});
    if (on_cuda()) {
      ASSERT_EQ(reused.data_ptr(), address) << "the case at hand did not arise";
    }
  }

  void TearDown() override {
    for (auto& graph : graphs) graph.reset();
    PoolTest::TearDown();
  }

  Graph& a() { return *graphs[0]; }
  Graph& b() { return *graphs[1]; }
  Graph& c() { return *graphs[2]; }

  std::optional<GraphPool> pool;
  std::vector<std::optional<Graph>> graphs{3};
  at::Tensor x, read, reused;
};
PIANOLA_ON_EVERY_DEVICE(ReplayOrderTest);

TEST_P(ReplayOrderTest, CaptureOrderGivesTheRightNumbersAgainAndAgain) {
  for (std::uint64_t step = 0; step < 4; ++step) {
    x.copy_(randn({kElements}, 10 + step));
    a().replay();
    b().replay();
    c().replay();
    EXPECT_TRUE(same(read, x * 2 + 1)) << "step " << step;
    EXPECT_TRUE(same(reused, x * 3)) << "step " << step;
  }
}

TEST_P(ReplayOrderTest, AnyHarmlessOrderIsAllowed) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({kElements}, 10 + step));
    c().replay();
    EXPECT_TRUE(same(reused, x * 3)) << "step " << step;
    a().replay();
    b().replay();
    b().replay();
    EXPECT_TRUE(same(read, x * 2 + 1)) << "step " << step;
  }
}

TEST_P(ReplayOrderTest, AReplayWhoseInputWasOverwrittenIsRefusedOnCudaAndRightOnTheTape) {
  a().replay();
  b().replay();
  const at::Tensor before = x * 2 + 1;
  x.copy_(randn({kElements}, 9));
  a().replay();
  c().replay();
  if (!on_cuda()) {
    b().replay();
    EXPECT_TRUE(same(read, x * 2 + 1));
    return;
  }
  EXPECT_THAT(refusal<ReplayError>("a replay whose input was overwritten", [&] { b().replay(); }),
              AllOf(HasSubstr("graph 2 of the pool reads a result of another graph"),
                    HasSubstr("a replay of graph 3 has overwritten"), HasSubstr("nothing was launched"),
                    HasSubstr("replay the graph that produces it again before this one"),
                    HasSubstr("capture graph 3 in a pool of its own")));
  EXPECT_TRUE(same(read, before)) << "nothing was launched";
  EXPECT_TRUE(same(reused, x * 3)) << "what overwrote it is right";
  a().replay();
  b().replay();
  EXPECT_TRUE(same(read, x * 2 + 1)) << "after the cure";
}

TEST_P(ReplayOrderTest, AGraphThatIsGoneHasStillOverwrittenWhatItOverwrote) {
  if (!on_cuda()) GTEST_SKIP() << "the tape reuses no bytes";
  a().replay();
  c().replay();
  graphs[2].reset();
  EXPECT_THROW(b().replay(), ReplayError);
  a().replay();
  b().replay();
  EXPECT_TRUE(same(read, x * 2 + 1));
}

TEST_P(PoolTest, CapturesAgainWhenItsLastGraphIsGone) {
  const GraphPool pool(device());
  const at::Tensor x = randn({8, 8});
  for (int i = 0; i < 3; ++i) {
    at::Tensor y;
    Graph graph(device());
    graph.capture([&] { y = x * 2; }, {.pool = pool});
    graph.replay();
    EXPECT_TRUE(same(y, x * 2));
  }
}

TEST_P(PoolTest, IsMadeAnewUnderItsNameWhenAllOfItIsGone) {
  const PoolId id = GraphPool::new_id();
  const at::Tensor x = randn({8, 8});
  for (int i = 0; i < 3; ++i) {
    at::Tensor y;
    Graph graph(device());
    graph.capture([&] { y = x * 2; }, {.pool = GraphPool(device(), id)});
    graph.replay();
    EXPECT_TRUE(same(y, x * 2));
  }
}

}  // namespace
}  // namespace pianola::pool_test
