#include <pianola/graph/graph.hpp>

#include <pianola/graph/branch_plan.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/op_trace.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// An operator whose schema torch has worked out from its C++ type: it says nothing about what is written.
static at::Tensor add_one(const at::Tensor& x) { return x + 1; }
// A collective by its name. What it does is of no account.
static at::Tensor pretend_to_reduce(const at::Tensor& x) { return x.clone(); }

// NOLINTBEGIN: torch's macros
TORCH_LIBRARY(pianola_branches_test, library) {
  library.def("add_one", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(add_one)));
}
TORCH_LIBRARY_FRAGMENT(_c10d_functional, library) { library.def("pianola_pretend(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(_c10d_functional, CompositeExplicitAutograd, library) {
  library.impl("pianola_pretend", &pretend_to_reduce);
}
// NOLINTEND

namespace pianola::branches_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::refusal;
using testing::same;
using testing::Training;

at::Tensor call(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>().call(x);
}

/// A step that is rebuilt from its true dependencies computes what it did, or stays as it was and says why.
class BranchesTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) x = randn({64, 64});
  }
  void TearDown() override {
    graph::tamper_with_planned_edges() = nullptr;
    DeviceTest::TearDown();
  }

  // Rebuilt wherever it is proved, however little faster.
  static CaptureOptions branched(int branches = 4) { return {.branches = branches, .parallel = {.self_check = false}}; }

  // Four chains of products that only their sum joins.
  void independent() {
    std::vector<at::Tensor> ends;
    for (int chain = 0; chain < 4; ++chain) {
      at::Tensor end = x * (chain + 1);
      for (int i = 0; i < 4; ++i) end = at::mm(end, x) * 0.1;
      ends.push_back(end);
    }
    y = at::stack(ends).sum(0);
  }
  [[nodiscard]] auto work() {
    return [this] { independent(); };
  }

  void expect_like_eager(Graph& graph, const std::function<void()>& step) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      x.copy_(randn({64, 64}, 10 + i));
      graph.replay();
      const at::Tensor replayed = y;
      step();
      EXPECT_TRUE(same(replayed, y)) << "in replay " << i;
      y = replayed;
    }
  }

  // What every graph that stayed as captured has to show.
  std::string expect_serial(Graph& graph, const std::function<void()>& step) {
    const GraphInfo info = graph.info();
    EXPECT_TRUE(info.branches.has_value());
    EXPECT_FALSE(info.branches->rebuilt);
    EXPECT_THAT(info.branches->reason, Not(IsEmpty()));
    expect_like_eager(graph, step);
    return info.branches->reason;
  }

  at::Tensor x, y;
};
PIANOLA_ON_EVERY_DEVICE(BranchesTest);

TEST_P(BranchesTest, ATrainingStepEqualsEagerAndWhatWasCapturedIsPutBack) {
  Training graphed(device(), 0, 6), untouched(device(), 0, 6);
  Graph graph(device());
  graph.capture([&] { graphed.step(); }, {.branches = 4});
  expect_same(graphed.state(), untouched.state(), "after the capture");
  for (int step = 0; step < 5; ++step) {
    untouched.feed(step);
    graphed.feed(step);
    untouched.step();
    graph.replay();
    expect_same(graphed.everything(), untouched.everything(), "in step " + std::to_string(step));
  }
}

TEST_P(BranchesTest, DropoutDrawsTheNumbersOfEagerAndTheGeneratorStandsWhereEagerLeavesIt) {
  for (const bool self_check : {false, true}) {
    testing::expect_dropout_like_eager(generator(), {.branches = 4, .parallel = {.self_check = self_check}});
  }
}

TEST_P(BranchesTest, TheReportTellsWhatWasFoundAndProved) {
  Graph graph(device());
  graph.capture(work(), branched());
  expect_like_eager(graph, work());
  const GraphInfo info = graph.info();
  ASSERT_TRUE(info.branches.has_value());
  const BranchInfo& branches = *info.branches;
  EXPECT_EQ(branches.rebuilt, on_cuda()) << branches.reason;
  EXPECT_EQ(branches.branches, 4);
  EXPECT_EQ(branches.lanes, 4U);
  EXPECT_GT(branches.nodes, 16U);
  EXPECT_GT(branches.edges_after, 0U);
  EXPECT_GT(branches.proved_pairs, 0U);
  EXPECT_LT(branches.critical_nodes, branches.nodes);
  EXPECT_LT(branches.modelled_rebuilt_us, 0.6 * branches.modelled_serial_us);
  EXPECT_LE(branches.modelled_critical_us, branches.modelled_rebuilt_us);
  if (on_cuda()) {
    EXPECT_GT(branches.workspace_bytes + branches.held_bytes, 0U);  // products may allocate theirs
    EXPECT_EQ(branches.untimed, "self_check is off");
    EXPECT_EQ(info.nodes, branches.nodes);
    EXPECT_EQ(info.edges, branches.edges_after);
  } else {
    EXPECT_THAT(branches.reason, HasSubstr("one after the other"));
  }
  EXPECT_THAT(branches.report().to_text(), HasSubstr("lanes"));
}

TEST_P(BranchesTest, WithoutBranchesThereIsNothingToReport) {
  for (const int branches : {0, 1}) {
    Graph graph(device());
    graph.capture(work(), {.branches = branches});
    EXPECT_FALSE(graph.info().branches.has_value());
    EXPECT_THAT(refusal<UsageError>("lanes of a graph without branches",
                                    [&] { graph.dump_lanes(::testing::TempDir() + "none.svg"); }),
                HasSubstr("captured without 'branches'"));
  }
}

TEST_P(BranchesTest, LanesAndNodesCanBeDrawn) {
  Graph graph(device());
  graph.capture(work(), branched());
  const std::filesystem::path lanes = ::testing::TempDir() + "lanes.svg", dot = ::testing::TempDir() + "lanes.dot";
  graph.dump_lanes(lanes);
  graph.dump_dot(dot);
  const auto contents = [](const std::filesystem::path& file) {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_THAT(contents(lanes), AllOf(HasSubstr("<svg"), HasSubstr("aten::mm")));
  EXPECT_THAT(contents(dot), AllOf(HasSubstr("digraph"), HasSubstr("aten::mm")));
  EXPECT_THAT(refusal<UsageError>("lanes to a file that cannot be written", [&] { graph.dump_lanes("/no/such.svg"); }),
              HasSubstr("cannot write '/no/such.svg'"));
}

TEST_P(BranchesTest, EveryOptionGivesTheNumbersOfEager) {
  const std::vector<ParallelOptions> choices = {
      {.workspaces = 1, .self_check = false},   {.workspaces = 2, .reuse_delay = 0, .self_check = false},
      {.reuse_delay = 3, .self_check = false},  {.split_kernels = true, .self_check = false},
      {.memory_limit = 0, .self_check = false}, {.memory_limit = 100 << 20U, .self_check = false},
  };
  for (std::size_t i = 0; i < choices.size(); ++i) {
    Training graphed(device(), 0, 4), eager(device(), 0, 4);
    Graph graph(device());
    graph.capture([&] { graphed.step(); }, {.branches = 3, .parallel = choices[i]});
    for (int step = 0; step < 3; ++step) {
      eager.feed(step);
      graphed.feed(step);
      eager.step();
      graph.replay();
      expect_same(graphed.everything(), eager.everything(), "with choice " + std::to_string(i));
    }
  }
}

TEST_P(BranchesTest, AChainStaysAsItIs) {
  Graph graph(device());
  const auto chain = [&] {
    y = x;
    for (int i = 0; i < 8; ++i) y = at::mm(y, x) * 0.1;
  };
  graph.capture(chain, {.branches = 4});
  EXPECT_THAT(expect_serial(graph, chain), HasSubstr("a chain"));
}

TEST_P(BranchesTest, AnOperatorWithoutAWrittenSchemaIsABarrier) {
  Graph graph(device());
  const auto step = [&] {
    const at::Tensor left = call("pianola_branches_test::add_one", x),
                     right = call("pianola_branches_test::add_one", x);
    y = left * right;
  };
  graph.capture(step, branched());
  expect_serial(graph, step);
  Graph mixed(device());
  const auto more = [&] {
    independent();
    const at::Tensor before = y, other = call("pianola_branches_test::add_one", x);
    independent();
    y = y + before * other;
  };
  mixed.capture(more, branched());
  expect_like_eager(mixed, more);
  const std::vector<BranchObstacle> obstacles = mixed.info().branches->obstacles;
  EXPECT_TRUE(std::any_of(obstacles.begin(), obstacles.end(),
                          [](const BranchObstacle& obstacle) { return obstacle.cause == "barrier"; }));
}

TEST_P(BranchesTest, AStepWithACollectiveIsRefused) {
  Graph graph(device());
  const auto step = [&] {
    independent();
    y = call("_c10d_functional::pianola_pretend", y);
  };
  EXPECT_THAT(refusal<CaptureError>("a collective", [&] { graph.capture(step, branched()); }),
              AllOf(HasSubstr("_c10d_functional::pianola_pretend communicates with other ranks"), HasSubstr("PG1106")));
}

TEST_P(BranchesTest, AGraphThatCannotBeProvedIsNotUsed) {
  graph::tamper_with_planned_edges() = [](std::vector<parallel::NodeEdge>& edges) { edges.pop_back(); };
  Graph graph(device());
  graph.capture(work(), branched());
  EXPECT_THAT(expect_serial(graph, work()), AllOf(HasSubstr("could not be proved right"), HasSubstr("aten::")));
  EXPECT_EQ(graph.info().branches->proved_pairs, 0U);
}

TEST_P(BranchesTest, MoreBranchesThanADeviceServesAreTakenAsEight) {
  Graph graph(device());
  graph.capture(work(), branched(64));
  expect_like_eager(graph, work());
  const BranchInfo branches = *graph.info().branches;
  EXPECT_EQ(branches.branches, 8);
  ASSERT_THAT(branches.warnings, Not(IsEmpty()));
  EXPECT_THAT(branches.warnings[0], HasSubstr("branches = 64 was reduced to 8"));
}

TEST_P(BranchesTest, RefusesNumbersBelowZeroAndBranchesWithoutATrace) {
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("branches below zero", [&] { graph.capture(work(), {.branches = -1}); }),
              HasSubstr("branches must be 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("workspaces below zero",
                                  [&] { graph.capture(work(), {.branches = 4, .parallel = {.workspaces = -2}}); }),
              HasSubstr("parallel.workspaces must be 0 or more, got -2"));
  EXPECT_THAT(refusal<UsageError>("a reuse delay below zero",
                                  [&] { graph.capture(work(), {.branches = 4, .parallel = {.reuse_delay = -3}}); }),
              HasSubstr("parallel.reuse_delay must be 0 or more, got -3"));
  EXPECT_THAT(
      refusal<UsageError>("branches without a trace", [&] { graph.capture(work(), {.branches = 4, .trace = false}); }),
      HasSubstr("branches = 4 needs the trace"));
  graph.capture(work(), branched());
  expect_like_eager(graph, work());
}

TEST_P(BranchesTest, AFailedCaptureLeavesNothingAndTheNextOneWorks) {
  Graph graph(device());
  const auto reads_on_the_host = [&] {
    independent();
    (void)y.sum().item<float>();
  };
  EXPECT_THROW(graph.capture(reads_on_the_host, {.warmup = 1, .branches = 4}), CaptureError);
  EXPECT_FALSE(graph.captured());
  graph.capture(work(), branched());
  expect_like_eager(graph, work());
}

TEST_P(BranchesTest, InputsAreCopiedBeforeAnythingReadsThem) {
  Graph graph(device());
  CaptureOptions options = branched();
  options.inputs = {x};
  graph.capture(work(), options);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor source = randn({64, 64}, 20 + i);
    graph.replay({{source}});
    const at::Tensor replayed = y.clone();
    x.copy_(source);
    const at::Tensor result = y;
    independent();
    EXPECT_TRUE(same(replayed, y));
    y = result;
  }
  expect_like_eager(graph, work());
}

TEST_P(BranchesTest, ResultsOfAnotherGraphOfThePoolAreReadAndTheGraphIsNotTimed) {
  GraphPool pool(device());
  Graph first(device()), second(device());
  at::Tensor between;
  first.capture([&] { between = x + 1; }, {.pool = pool});
  const auto reader = [&] {
    const at::Tensor kept = x;
    x = between;
    independent();
    x = kept;
  };
  second.capture(reader, {.pool = pool, .branches = 4});
  if (on_cuda()) {
    EXPECT_THAT(second.info().branches->untimed, HasSubstr("the pool is shared"));
  }
  for (std::uint64_t i = 0; i < 3; ++i) {
    x.copy_(randn({64, 64}, 30 + i));
    first.replay();
    second.replay();
    const at::Tensor replayed = y;
    reader();
    EXPECT_TRUE(same(replayed, y));
    y = replayed;
  }
}

TEST_P(BranchesTest, TheExecutableCanBeMadeLaterAndAnew) {
  Graph graph(device());
  CaptureOptions options{.branches = 4};
  options.instantiate = false;
  graph.capture(work(), options);
  graph.instantiate();
  expect_like_eager(graph, work());
  graph.instantiate();
  expect_like_eager(graph, work());
}

TEST_P(BranchesTest, GradientsThatTheStepDefinesStayAndAreZero) {
  const at::Tensor weight = randn({64, 64}).requires_grad_();
  Graph graph(device());
  graph.capture(
      [&] {
        at::Tensor loss = at::mm(x, weight).sum() + at::mm(weight, x).sum();
        loss.backward();
      },
      {.branches = 4});
  ASSERT_TRUE(weight.grad().defined());
  EXPECT_TRUE(same(weight.grad(), at::zeros_like(weight).detach()));
}

}  // namespace
}  // namespace pianola::branches_test
