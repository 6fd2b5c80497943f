#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>

#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace pianola::foreign_use_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;

// What bindings and tools do that steps given as functions do not.
class ForeignUseTest : public testing::DeviceTest {
 protected:
  at::Tensor x = {}, y = {};
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) x = randn({4, 4});
  }
  [[nodiscard]] auto doubling() {
    return [this] { y = x * 2; };
  }
  static void set_state(const at::Tensor& state) {
    at::Generator drawing = generator();
    const std::lock_guard lock(drawing.mutex());
    drawing.set_state(state);
  }
  void expect_doubles(Graph& graph) {
    x.copy_(randn({4, 4}, 9));
    graph.replay();
    EXPECT_TRUE(same(y, x * 2));
  }
};
PIANOLA_ON_EVERY_DEVICE(ForeignUseTest);

TEST_P(ForeignUseTest, TheExecutableCanBeLeftToInstantiate) {
  Graph graph(device());
  graph.capture(doubling(), {.instantiate = false});
  EXPECT_EQ(graph.raw_executable(), nullptr);
  EXPECT_EQ(graph.raw_graph() != nullptr, on_cuda());
  graph.instantiate();
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda());
  expect_doubles(graph);
  graph.instantiate();
  expect_doubles(graph);
}

TEST_P(ForeignUseTest, TheExecutableCanBeLeftToTheFirstReplay) {
  Graph graph(device());
  graph.capture(doubling(), {.instantiate = false});
  expect_doubles(graph);
}

TEST_P(ForeignUseTest, InputsAreCopiedByAnExecutableThatIsMadeLaterOrAnew) {
  Graph graph(device());
  graph.capture(doubling(), {.inputs = {x}, .instantiate = false});
  for (const std::uint64_t seed : {1U, 2U}) {
    const at::Tensor source = randn({4, 4}, seed);
    graph.replay({{source}});
    EXPECT_TRUE(same(y, source * 2));
    graph.instantiate();
    graph.replay({{source}});
    EXPECT_TRUE(same(y, source * 2));
    expect_doubles(graph);
  }
}

TEST_P(ForeignUseTest, InstantiateNeedsACapture) {
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("instantiate() on an empty graph", [&] { graph.instantiate(); }),
              HasSubstr("instantiate() was called on a graph that holds no capture"));
}

TEST_P(ForeignUseTest, AnEmptyCaptureMayPassWithAWarning) {
  Graph graph(device());
  graph.capture([] {}, {.allow_empty = true});
  ASSERT_EQ(graph.info().warnings.size(), 1U);
  EXPECT_THAT(graph.info().warnings.front(), HasSubstr("empty"));
  graph.replay();
}

TEST_P(ForeignUseTest, HandlesOfOneNameAreOnePool) {
  const PoolId id = GraphPool::new_id();
  EXPECT_NE(id, GraphPool::new_id());
  Graph first(device()), second(device());
  first.capture(doubling(), {.pool = GraphPool(device(), id)});
  EXPECT_EQ(first.pool().id(), id);
  second.capture(doubling(), {.pool = GraphPool(device(), id)});
  EXPECT_EQ(first.pool().state(), second.pool().state());
  EXPECT_EQ(GraphPool(device(), id).bytes(), first.info().pool_bytes);
  EXPECT_THAT(refusal<UsageError>("the name of no pool", [] { (void)GraphPoolRef().id(); }),
              HasSubstr("names no pool"));
}

TEST_P(ForeignUseTest, AScopeExplainsATorchErrorThatCapturingCaused) {
  Graph graph(device());
  const auto capture = [&] {
    CaptureScope scope(graph);
    try {
      y = x * 2;
      (void)y.sum().item<float>();
      scope.end();
    } catch (const c10::Error&) {
      scope.fail(std::current_exception());
    }
  };
  EXPECT_THAT(refusal<CaptureError>("a host read in a scope", capture), HasSubstr("host"));
  EXPECT_FALSE(is_capturing());
  graph.capture(doubling());
  expect_doubles(graph);
}

TEST_P(ForeignUseTest, AScopeRethrowsWhatIsTheCodesOwn) {
  Graph graph(device());
  const auto capture = [&] {
    CaptureScope scope(graph);
    EXPECT_TRUE(is_capturing());
    EXPECT_TRUE(is_recording());
    y = x * 2;
    scope.fail(std::make_exception_ptr(std::out_of_range("mine")));
  };
  EXPECT_THROW(capture(), std::out_of_range);
  EXPECT_FALSE(is_capturing());
  EXPECT_FALSE(is_recording());
}

TEST_P(ForeignUseTest, AWarmUpIsPartOfACaptureAndIsNotRecorded) {
  Graph graph(device());
  std::vector<bool> recorded;
  graph.capture(
      [&] {
        EXPECT_TRUE(is_capturing());
        recorded.push_back(is_recording());
        y = x * 2;
      },
      {.warmup = 2});
  EXPECT_THAT(recorded, ::testing::ElementsAre(false, false, true));
  EXPECT_FALSE(is_recording());
}

TEST_P(ForeignUseTest, AScopeThatHasEndedSaysSo) {
  Graph graph(device());
  CaptureScope scope(graph);
  y = x * 2;
  scope.end();
  EXPECT_THAT(refusal<UsageError>("fail() after end()",
                                  [&] { scope.fail(std::make_exception_ptr(std::runtime_error("mine"))); }),
              HasSubstr("fail() was called on a CaptureScope that has ended"));
}

TEST_P(ForeignUseTest, AForkedChildIsRefusedAndMayDropTheGraph) {
  auto graph = std::make_unique<Graph>(device());
  graph->capture(doubling());
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    try {
      graph->replay();
    } catch (const UsageError& error) {
      refused = std::string(error.what()).find("in a forked child of the process that captured the graph") !=
                std::string::npos;
    }
    graph.reset();
    _exit(refused == 1 ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  expect_doubles(*graph);
}

// A state that the step saved itself may be set on CUDA, where torch moves the graph's count back.
TEST_P(ForeignUseTest, AStepMayDrawTheSameNumbersTwiceOnCuda) {
  const auto step = [&] {
    const at::Tensor state = state_of(generator());
    const at::Tensor first = at::rand({4}, x.options());
    set_state(state);
    y = first * 2 - at::rand({4}, x.options());
  };
  Graph graph(device());
  if (!on_cuda()) {
    EXPECT_THAT(refusal<CaptureError>("a step that sets its generator", [&] { graph.capture(step, {.warmup = 0}); }),
                AllOf(HasSubstr("a generator was seeded or its state was set"), HasSubstr("before aten::rand")));
    return;
  }
  graph.capture(step);
  const at::Tensor replayed = y;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor before = state_of(generator());
    step();
    const at::Tensor expected = y, after = state_of(generator());
    set_state(before);
    graph.replay();
    EXPECT_TRUE(same(replayed, expected));
    EXPECT_TRUE(same(state_of(generator()), after));
  }
}

TEST_P(ForeignUseTest, AStateFromElsewhereIsRefused) {
  for (int i = 0; i < 10; ++i) (void)at::rand({4}, x.options());
  const at::Tensor elsewhere = state_of(generator());
  (void)at::rand({4}, x.options());
  const at::Tensor before = state_of(generator());
  const auto refused = [&](const std::string& title, const std::function<void()>& step,
                           const CaptureOptions& options = {}) {
    return refusal<CaptureError>(title, [&] { Graph(device()).capture(step, options); });
  };
  EXPECT_THAT(refused("a step that sets a state from elsewhere",
                      [&] {
                        y = at::rand({4}, x.options());
                        set_state(elsewhere);
                      }),
              AllOf(HasSubstr("its state was set"), HasSubstr("after the last operation that draws from it")));
  EXPECT_THAT(refused("a step that sets a state where none may be set",
                      [&] {
                        const at::Tensor state = state_of(generator());
                        y = at::rand({4}, x.options());
                        set_state(state);
                        y = y + at::rand({4}, x.options());
                      },
                      {.set_generators = false}),
              AllOf(HasSubstr("its state was set"), HasSubstr("before aten::rand")));
  EXPECT_TRUE(same(state_of(generator()), before));
}

}  // namespace
}  // namespace pianola::foreign_use_test
