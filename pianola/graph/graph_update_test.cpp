#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pianola::graph_update_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using ::testing::ContainsRegex;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::Training;

struct UserError {};

class GraphUpdateTest : public testing::DeviceTest {
 protected:
  static std::string on(const std::string& title) { return title + ", on " + GetParam(); }

  // Both trainings are as they were before their first step.
  static void expect_trains_as(Graph& graph, Training& graphed, Training& eager, int steps = 3) {
    for (int step = 0; step < steps; ++step) {
      eager.feed(step);
      graphed.feed(step);
      eager.step();
      graph.replay();
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(GraphUpdateTest);

TEST_P(GraphUpdateTest, ReplaysTheSameStepOnOtherTensors) {
  Graph graph(device());
  Training first(device(), 0, 3, 7);
  graph.capture([&] { first.step(); });
  graph.replay();
  const auto left = clone_all(first.state());
  for (const std::uint64_t seed : {11U, 12U, 13U}) {
    Training graphed(device(), 0, 3, seed), eager(device(), 0, 3, seed);
    graph.update([&] { graphed.step(); });
    expect_same(graphed.state(), eager.state(), "after the update, which is no step");
    expect_trains_as(graph, graphed, eager);
  }
  expect_same(first.state(), left, "of the first capture, which nobody replays any more");
}

TEST_P(GraphUpdateTest, ReplaysWithAnotherLearningRate) {
  const at::Tensor w = randn({16, 16}), expected = w.clone(), gradient = randn({16, 16}, 2);
  Graph graph(device());
  double rate = 0.1;
  const auto step = [&] { w.sub_(gradient * w, rate); };
  graph.capture(step);
  for (const double next : {0.1, 0.025, 0.4}) {
    rate = next;
    graph.update(step);
    for (int i = 0; i < 3; ++i) {
      gradient.copy_(randn({16, 16}, 30 + i));
      graph.replay();
      expected.sub_(gradient * expected, rate);
      EXPECT_TRUE(same(w, expected)) << "rate " << rate << ", step " << i;
    }
  }
}

TEST_P(GraphUpdateTest, ReplaysBatchesOfAnotherSize) {
  const at::Tensor w = randn({16});
  Graph graph(device());
  at::Tensor y;
  const auto capture_or_update = [&](const at::Tensor& x) {
    const auto step = [&] { y = at::tanh(x * w) + 1; };
    graph.captured() ? graph.update(step, {.inputs = {x}}) : graph.capture(step, {.inputs = {x}});
  };
  for (const std::int64_t rows : {8, 8, 3, 300, 1, 8}) {
    const at::Tensor x = randn({rows, 16});
    capture_or_update(x);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const std::vector<at::Tensor> batch = {randn({rows, 16}, 40 + step)};
      graph.replay(batch);
      EXPECT_TRUE(same(y, at::tanh(batch[0] * w) + 1)) << rows << " rows, step " << step;
    }
    x.fill_(0.5);
    graph.replay();  // copies nothing
    EXPECT_TRUE(same(y, at::tanh(x * w) + 1)) << rows << " rows, written in place";
  }
}

// Each update finds the copies as another replay left them: some switched on, with sources of their own.
TEST_P(GraphUpdateTest, CopiesSourcesIntoTheInputsOfTheLastCapture) {
  Graph graph(device());
  at::Tensor difference;
  std::vector<at::Tensor> earlier;
  for (int round = 0; round < 4; ++round) {
    const at::Tensor a = randn({4, 6}, 1), b = randn({4, 6}, 2), none = at::zeros({0, 6}, device());
    const auto step = [&] { difference = (a - b) * 2; };
    const CaptureOptions options{.inputs = {a, none, b}};
    round == 0 ? graph.capture(step, options) : graph.update(step, options);
    graph.replay();
    EXPECT_TRUE(same(difference, (a - b) * 2)) << "round " << round << ": inputs as they are";
    const at::Tensor x = randn({4, 6}, 50 + round), y = randn({4, 6}, 60 + round);
    const std::vector<at::Tensor> sources = {x, none, y}, in_place = {a, none, x}, zeros = {y, none, at::Tensor()};
    graph.replay(sources);
    EXPECT_TRUE(same(difference, (x - y) * 2)) << "round " << round;
    graph.replay(in_place);
    EXPECT_TRUE(same(difference, (x - x) * 2)) << "round " << round << ": a holds x";
    graph.replay(zeros);
    EXPECT_TRUE(same(difference, y * 2)) << "round " << round;
    if (round % 2 == 0) graph.replay(sources);  // so that both copies are on
    for (const at::Tensor& before : earlier) EXPECT_TRUE(same(before, at::ones_like(before))) << "nobody writes there";
    earlier.insert(earlier.end(), {a, b});
    for (const at::Tensor& mine : {a, b}) mine.fill_(1);
  }
}

TEST_P(GraphUpdateTest, DrawsTheNumbersThatEagerDraws) {
  Graph graph(device());
  Training first(device(), 0.3);
  graph.capture([&] { first.step(); });
  for (const std::uint64_t seed : {21U, 22U}) {
    Training graphed(device(), 0.3, 3, seed), eager(device(), 0.3, 3, seed);
    const at::Tensor before = state_of(generator());
    graph.update([&] { graphed.step(); });
    EXPECT_TRUE(state_of(generator()).equal(before)) << "an update draws nothing";
    for (int step = 0; step < 3; ++step) {
      const at::Tensor state = state_of(generator());
      eager.step();
      const at::Tensor moved = state_of(generator());
      at::Generator rewound = generator();
      rewound.set_state(state);
      graph.replay();
      EXPECT_TRUE(state_of(generator()).equal(moved));
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
    }
  }
}

TEST_P(GraphUpdateTest, KeepsTheExecutableAndHasTheNewGraph) {
  const at::Tensor x = randn({4}), w = randn({4}, 2);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x * 2; }, {.warmup = 1});
  void* const executable = graph.raw_executable();
  const GraphInfo before = graph.info();
  graph.update([&] { y = w * 3; }, {.warmup = 2});
  EXPECT_EQ(graph.raw_executable(), executable);
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda());
  EXPECT_EQ(graph.info().nodes, before.nodes);
  EXPECT_EQ(graph.info().executable_bytes, before.executable_bytes);
  EXPECT_EQ(graph.info().operations, before.operations);
  EXPECT_EQ(graph.info().retained_bytes, w.nbytes());
  graph.instantiate();  // of the new graph
  w.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, w * 3));
}

TEST_P(GraphUpdateTest, MakesAnExecutableOfItsOwnWhereThereWasNone) {
  const at::Tensor x = randn({4}), w = randn({4}, 2);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x * 2; }, {.instantiate = false});
  graph.update([&] { y = w * 2; });
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda());
  w.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, w * 2));
}

TEST_P(GraphUpdateTest, LetsGoOfWhatTheEarlierCaptureRead) {
  at::Tensor x = randn({4, 16});
  const at::Tensor w = randn({4, 16}, 2);
  const c10::weak_intrusive_ptr<c10::StorageImpl> witness(x.storage().getWeakStorageImpl());
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = x * 2; });
  graph.replay();
  const at::Tensor kept = y, expected = y.clone();
  x.reset();
  EXPECT_FALSE(witness.expired());
  graph.update([&] { y = w * 2; });
  EXPECT_TRUE(witness.expired());
  graph.replay();
  EXPECT_TRUE(same(kept, expected)) << "its result belongs to its holder";
}

TEST_P(GraphUpdateTest, AHundredTimesTakesNoMoreMemory) {
  Graph graph(device());
  Training graphed(device(), 0.2), eager(device(), 0.2);
  const auto step = [&] { graphed.step(); };
  const auto reserved = []() -> std::int64_t {
#if PIANOLA_WITH_CUDA
    if (on_cuda()) return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
#endif
    return 0;
  };
  const auto run = [&](int updates) {
    for (int i = 0; i < updates; ++i) {
      graph.update(step, {.warmup = i % 10 == 0 ? 1 : 0});
      if (i % 3 == 0) graph.replay();
    }
    synchronize();
  };
  graph.capture(step);
  run(20);
  const std::int64_t reserved_before = reserved();
  const GraphInfo before = graph.info();
  run(100);
  const std::int64_t segment = on_cuda() ? 2 << 20 : 0;  // that the allocator may find no room in, now and then
  EXPECT_LE(graph.info().pool_bytes, before.pool_bytes + static_cast<std::size_t>(segment));
  EXPECT_EQ(graph.info().executable_bytes, before.executable_bytes);
  EXPECT_LE(reserved(), reserved_before + segment);
}

TEST_P(GraphUpdateTest, ASharedPoolGoesOnWithItsOtherGraphs) {
  const GraphPool pool(device());
  const at::Tensor x = randn({64, 16}), w = randn({16, 16}, 2);
  at::Tensor hidden, y;
  Graph first(device()), second(device());
  double factor = 2;
  const auto produce = [&] { hidden = at::gelu(x * factor); };
  first.capture(produce, {.pool = pool});
  second.capture([&] { y = at::tanh(hidden) * 3; }, {.pool = pool});
  second.update([&] { y = at::tanh(hidden) * 5; });
  EXPECT_EQ(second.pool().id(), pool.id()) << "without a pool, that of the earlier capture";
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({64, 16}, 70 + step));
    first.replay();
    second.replay();
    EXPECT_TRUE(same(y, at::tanh(at::gelu(x * 2)) * 5)) << "step " << step;
  }
  factor = 3;
  first.update(produce);
  second.update([&] { y = at::tanh(hidden) * 7; });  // reads where the first one writes now
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({64, 16}, 80 + step));
    first.replay();
    second.replay();
    EXPECT_TRUE(same(y, at::tanh(at::gelu(x * 3)) * 7)) << "step " << step;
  }
}

TEST_P(GraphUpdateTest, MovesToThePoolThatIsGiven) {
  const GraphPool pool(device());
  const at::Tensor x = randn({64, 16});
  at::Tensor y;
  Graph graph(device());
  const auto step = [&] { y = at::gelu(x) * 2; };
  graph.capture(step, {.inputs = {x}});
  graph.update(step, {.pool = pool, .inputs = {x}});
  EXPECT_EQ(graph.pool().id(), pool.id());
  EXPECT_GT(pool.bytes(), 0U);
  const std::vector<at::Tensor> batch = {randn({64, 16}, 3)};
  graph.replay(batch);
  EXPECT_TRUE(same(y, at::gelu(batch[0]) * 2));
}

TEST_P(GraphUpdateTest, AStepOfOtherOperationsIsRefusedByNameAndTheEarlierOneReplays) {
  const at::Tensor x = randn({4, 16});
  at::Tensor y, other;
  Graph graph(device());
  graph.capture([&] { y = at::relu(x).t() * 2; });
  void* const executable = graph.raw_executable();
  const auto refused = [&](const std::string& title, const std::function<void()>& step) {
    const std::string message = refusal<CaptureError>(on("an update with " + title), [&] { graph.update(step); });
    EXPECT_THAT(message, AllOf(HasSubstr("update() was given a step of other operations"),
                               HasSubstr("the earlier capture stays"), HasSubstr("call reset() and capture()")));
    EXPECT_TRUE(graph.captured());
    EXPECT_EQ(graph.raw_executable(), executable);
    x.add_(1);
    graph.replay();
    EXPECT_TRUE(same(y, at::relu(x).t() * 2)) << "after " << title;
    return message;
  };
  EXPECT_THAT(
      refused("another operation", [&] { other = at::sigmoid(x).t() * 2; }),
      AllOf(HasSubstr("aten::sigmoid stands where aten::relu was captured"), HasSubstr("operation 1 of the step")));
  EXPECT_THAT(
      refused("one operation more", [&] { other = at::relu(x).t() * 2 + 1; }),
      AllOf(ContainsRegex("aten::add.* comes behind the last one that was captured"), HasSubstr("of the step")));
  EXPECT_THAT(refused("one operation less", [&] { other = at::relu(x); }),
              AllOf(ContainsRegex("it ends before aten::mul.*, which was captured"),
                    HasSubstr("operation 3 of the earlier capture")));
  graph.update([&] { y = at::relu(x).view({16, 4}).view({4, 16}).t() * 4; });  // views do not count
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, at::relu(x).t() * 4));
}

#if PIANOLA_WITH_CUDA
// The sum of many elements needs a word in memory that a node clears before.
TEST_P(GraphUpdateTest, OtherNodesOfTheSameOperationsAreRefusedByCudaAndNamed) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has no nodes";
  const at::Tensor few = randn({64}), many = at::ones({1 << 24}, device());
  at::Tensor total;
  Graph graph(device());
  graph.capture([&] { total = few.sum() * 2; });
  const at::Tensor kept = total;
  EXPECT_THAT(
      refusal<CaptureError>("an update with other nodes", [&] { graph.update([&] { total = many.sum() * 2; }); }),
      AllOf(HasSubstr("update() cannot give the executable what aten::sum"), HasSubstr("operation 1 of the step"),
            HasSubstr("in the earlier capture"), HasSubstr("call reset() and capture()")));
  few.add_(1);
  graph.replay();
  EXPECT_TRUE(same(kept, few.sum() * 2));
}

// An input that is not dense has no node that copies it.
TEST_P(GraphUpdateTest, InputsOfWhichOthersAreCopiedByTheGraphAreRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the tape has no nodes";
  const at::Tensor dense = randn({4, 8}), sparse = randn({4, 16}).slice(1, 0, 16, 2);
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = dense * 2; }, {.inputs = {dense}});
  const at::Tensor kept = y;
  EXPECT_THAT(
      refusal<CaptureError>("an update with a strided input",
                            [&] { graph.update([&] { y = sparse * 2; }, {.inputs = {sparse}}); }),
      AllOf(HasSubstr("the graph copies 0, and 1 in the earlier capture"), HasSubstr("the earlier capture stays")));
  const at::Tensor source = randn({4, 8}, 5);
  graph.replay(std::vector<at::Tensor>{source});
  EXPECT_TRUE(same(kept, source * 2));
}
#endif

TEST_P(GraphUpdateTest, AnErrorOfTheStepLeavesTheEarlierCapture) {
  Graph graph(device());
  Training graphed(device(), 0.2), eager(device(), 0.2), failing(device(), 0.2, 3, 5);
  graph.capture([&] { graphed.step(); });
  const auto state = clone_all(failing.state());
  const at::Tensor drawn = state_of(generator());
  int calls = 0;
  EXPECT_THROW(graph.update([&] {
    failing.step();
    if (++calls == 4) throw UserError();
  }),
               UserError);
  EXPECT_EQ(calls, 4) << "it threw while it was recorded";
  EXPECT_THROW(graph.update([&] {
    failing.step();
    (void)failing.loss.item<float>();
  }),
               CaptureError);
  EXPECT_THAT(refusal<CaptureError>(on("an update with an empty step"), [&] { graph.update([] {}); }),
              HasSubstr("the step is empty"));
  expect_same(failing.state(), state, "of what the failed updates worked on");
  EXPECT_TRUE(state_of(generator()).equal(drawn));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor before = state_of(generator());
    eager.step();
    at::Generator rewound = generator();
    rewound.set_state(before);
    graph.replay();
    expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
  }
  Training next(device(), 0.2, 3, 6);
  graph.update([&] { next.step(); });
  EXPECT_TRUE(graph.captured());
}

TEST_P(GraphUpdateTest, ARefusedUpdateLeavesNoGradient) {
  const at::Tensor x = randn({4, 16}), w = randn({16}, 2).requires_grad_(), v = randn({16}, 3).requires_grad_();
  Graph graph(device());
  graph.capture([&] { (x * w).sum().backward(); });
  EXPECT_TRUE(w.grad().defined());
  EXPECT_THROW(graph.update([&] { at::tanh(x * v).sum().backward(); }), CaptureError);
  EXPECT_FALSE(v.grad().defined());
}

TEST_P(GraphUpdateTest, AnEmptyStepStaysEmpty) {
  const at::Tensor x = randn({4});
  Graph graph(device());
  graph.capture([] {}, {.allow_empty = true});
  graph.update([] {}, {.allow_empty = true});
  graph.replay();
  EXPECT_EQ(graph.info().nodes, 0U);
  EXPECT_THAT(refusal<CaptureError>(on("an update of an empty graph"), [&] { graph.update([&] { (void)(x * 2); }); }),
              ContainsRegex("aten::mul.* comes behind the last one that was captured"));
  graph.replay();
}

TEST_P(GraphUpdateTest, AGraphWithoutACaptureIsRefused) {
  const at::Tensor x = randn({4});
  Graph graph(device());
  const auto step = [&] { (void)(x * 2); };
  EXPECT_THAT(
      refusal<UsageError>(on("an update of nothing"), [&] { graph.update(step); }),
      AllOf(HasSubstr("update() was called on a graph that holds no capture"), HasSubstr("call capture() first")));
  graph.capture(step);
  graph.reset();
  EXPECT_THROW(graph.update(step), UsageError);
}

TEST_P(GraphUpdateTest, OptionsThatAnUpdateCannotHaveAreRefused) {
  const at::Tensor x = randn({4});
  Graph graph(device());
  const auto step = [&] { (void)(x * 2); };
  graph.capture(step, {.inputs = {x}});
  const auto refused = [&](const std::string& title, const CaptureOptions& options) {
    return refusal<UsageError>(on("an update with " + title), [&] { graph.update(step, options); });
  };
  EXPECT_THAT(refused("trace off", {.inputs = {x}, .trace = false}), HasSubstr("update() needs the trace"));
  EXPECT_THAT(refused("instantiate off", {.inputs = {x}, .instantiate = false}), HasSubstr("'instantiate' is off"));
  EXPECT_THAT(refused("branches", {.inputs = {x}, .branches = 4}), HasSubstr("does not rebuild a graph in lanes"));
  EXPECT_THAT(refused("automatic branches", {.inputs = {x}, .branches = kAutoBranches}),
              HasSubstr("'branches' is set"));
  EXPECT_THAT(refused("no inputs", {}), HasSubstr("was given 0 tensors as 'inputs', and the capture has 1"));
  EXPECT_THAT(refused("a negative warm-up", {.warmup = -1, .inputs = {x}}), HasSubstr("warmup"));
  graph.update(step, {.inputs = {x}});
}

TEST_P(GraphUpdateTest, CapturesThatNoUpdateFollowsAreRefused) {
  const at::Tensor x = randn({4});
  const auto step = [&] { (void)(x * 2 + at::tanh(x)); };
  const auto refused = [&](const std::string& title, const CaptureOptions& options) {
    Graph graph(device());
    graph.capture(step, options);
    return refusal<UsageError>(on("an update of a graph " + title), [&] { graph.update(step); });
  };
  EXPECT_THAT(refused("without a trace", {.trace = false}), HasSubstr("captured with 'trace' off"));
  EXPECT_THAT(refused("with branches", {.branches = 4}), HasSubstr("captured with 'branches'"));
  Graph numbered(device());
  const Number rate = numbered.number("rate", 0.1);
  numbered.capture([&] { (void)x.sub(x, rate); });
  EXPECT_THAT(refusal<UsageError>(on("an update of a graph with numbers"), [&] { numbered.update(step); }),
              AllOf(HasSubstr("on a graph with numbers"), HasSubstr("set its numbers")));
  numbered.replay();
}

TEST_P(GraphUpdateTest, InsideOfACaptureIsRefused) {
  const at::Tensor x = randn({4});
  Graph graph(device()), outer(device());
  const auto step = [&] { (void)(x * 2); };
  graph.capture(step);
  EXPECT_THAT(
      refusal<UsageError>(on("an update inside of a capture"), [&] { outer.capture([&] { graph.update(step); }); }),
      HasSubstr("a capture is open on this thread already"));
  EXPECT_THAT(refusal<UsageError>(on("a replay inside of an update"), [&] { graph.update([&] { graph.replay(); }); }),
              HasSubstr("replay() was called on a graph inside another call of the same one"));
  graph.update(step);
  graph.replay();
}

TEST_P(GraphUpdateTest, AForkedChildIsRefused) {
  const at::Tensor x = randn({4});
  Graph graph(device());
  const auto step = [&] { (void)(x * 2); };
  graph.capture(step);
  const pid_t child = fork();
  if (child == 0) {
    bool refused = false;
    try {
      graph.update(step);
    } catch (const UsageError& error) {
      refused = std::string(error.what()).find("update() was called in a forked child of the process") == 0;
    }
    _exit(refused ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST_P(GraphUpdateTest, APoolThatSleepsIsRefused) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true});
  const at::Tensor x = randn({4, 16});
  at::Tensor y;
  Graph graph(device());
  double factor = 2;
  const auto step = [&] { y = x * factor; };
  graph.capture(step, {.pool = pool});
  factor = 3;
  pool.suspend();
  EXPECT_THAT(refusal<UsageError>(on("an update while the pool is asleep"), [&] { graph.update(step); }),
              HasSubstr("update() was given a pool that is asleep"));
  pool.resume();
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
  graph.update(step);
  graph.replay();
  EXPECT_TRUE(same(y, x * 3));
}

}  // namespace
}  // namespace pianola::graph_update_test
