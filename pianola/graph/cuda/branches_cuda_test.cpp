#include <pianola/graph/graph.hpp>

#include <pianola/graph/cuda/blas_workspaces.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/graph/testing/no_more_memory.hpp>
#include <pianola/torch_abi/cuda/workspace_size.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace pianola::testing::branches_cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// What only CUDA has: streams, workspaces, nodes that are no kernels.
class BranchesOnCudaTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) x = randn({64, 64});
  }

  static CaptureOptions branched() { return {.branches = 4, .parallel = {.self_check = false}}; }

  void independent() {
    std::vector<at::Tensor> ends;
    for (int chain = 0; chain < 4; ++chain) {
      at::Tensor end = x * (chain + 1);
      for (int i = 0; i < 4; ++i) end = at::mm(end, x) * 0.1;
      ends.push_back(end);
    }
    y = at::stack(ends).sum(0);
  }

  void expect_like_eager(Graph& graph) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      x.copy_(randn({64, 64}, 10 + i));
      graph.replay();
      const at::Tensor replayed = y;
      independent();
      EXPECT_TRUE(same(replayed, y)) << "in replay " << i;
      y = replayed;
    }
  }

  // Captures the usual work and `more`, and gives the reason why it stayed serial.
  std::string reason_with(const std::function<void()>& more) {
    Graph graph(device());
    graph.capture(
        [&] {
          independent();
          more();
        },
        branched());
    const BranchInfo branches = *graph.info().branches;
    EXPECT_FALSE(branches.rebuilt);
    expect_like_eager(graph);
    return branches.reason;
  }

  at::Tensor x, y;
};
INSTANTIATE_TEST_SUITE_P(On, BranchesOnCudaTest, ::testing::Values("cuda"), device_name);

/// Keeps a stream of its own busy while it lives.
class BusyStream {
 public:
  explicit BusyStream(const at::Tensor& like) : stream_(c10::cuda::getStreamFromPool()), a_(like.clone()) {
    const c10::cuda::CUDAStreamGuard on(stream_);
    work();
    graph_.capture([&] { work(); }, {.warmup = 1});
  }
  void launch() {
    const c10::cuda::CUDAStreamGuard on(stream_);
    graph_.replay();
  }

 private:
  void work() {
    b_ = a_;
    for (int i = 0; i < 40; ++i) b_ = at::mm(b_, a_) * 0.1;
  }
  c10::cuda::CUDAStream stream_;
  at::Tensor a_, b_;
  Graph graph_{c10::Device("cuda:0")};
};

// Two hundred and fifty steps of one training, three ways; the third while another stream computes as well.
TEST_P(BranchesOnCudaTest, TrainingEqualsSerialAndEagerAfter250StepsQuietAndBesideABusyStream) {
  for (const double dropout : {0.0, 0.3}) {
    const auto train = [&](int branches, bool busy, bool eager) {
      seed(3);
      Training training(device(), dropout, 8);
      Graph graph(device());
      if (!eager) {
        graph.capture([&] { training.step(); }, {.branches = branches, .parallel = {.self_check = false}});
        if (branches > 1) {
          EXPECT_TRUE(graph.info().branches->rebuilt) << graph.info().branches->reason;
        }
      }
      std::optional<BusyStream> noise;
      if (busy) noise.emplace(randn({256, 256}));
      for (int step = 0; step < 250; ++step) {
        if (noise) noise->launch();
        training.feed(step);
        eager ? training.step() : graph.replay();
      }
      synchronize();
      return clone_all(training.everything());
    };
    const NamedTensors expected = train(0, false, true);
    expect_same(train(0, false, false), expected, "serial");
    expect_same(train(4, false, false), expected, "branches");
    expect_same(train(4, true, false), expected, "branches beside a busy stream");
    expect_same(train(8, true, false), expected, "eight branches beside a busy stream");
  }
}

TEST_P(BranchesOnCudaTest, BranchesOfConvolutionsEqualEager) {
  const at::NoGradGuard no_grad;
  const at::Tensor image = randn({1, 32, 28, 28});
  const std::vector<at::Tensor> weights = {randn({32, 32, 1, 1}, 2), randn({32, 32, 3, 3}, 3),
                                           randn({32, 32, 5, 5}, 4)};
  at::Tensor out;
  const auto block = [&] {
    at::Tensor in = image;
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<at::Tensor> branches;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto padding = static_cast<std::int64_t>(i);
        branches.push_back(at::conv2d(in, weights[i] * 0.05, {}, 1, padding).relu());
      }
      branches.push_back(at::avg_pool2d(in, 3, 1, 1));
      in = at::stack(branches).sum(0);
    }
    out = in;
  };
  block();
  Graph graph(device());
  graph.capture(block, {.branches = 4, .parallel = {.self_check = false}});
  EXPECT_TRUE(graph.info().branches->rebuilt) << graph.info().branches->reason;
  for (std::uint64_t i = 0; i < 20; ++i) {
    image.copy_(randn({1, 32, 28, 28}, 40 + i));
    graph.replay();
    const at::Tensor replayed = out;
    block();
    EXPECT_TRUE(same(replayed, out)) << i;
    out = replayed;
  }
}

TEST_P(BranchesOnCudaTest, TheSelfCheckTimesBothAndPutsBackWhatItWrote) {
  for (const bool restore : {true, false}) {
    seed(9);
    Training expected(device(), 0.2, 8);
    if (!restore) expected.step();  // then the run that warms up counts
    const at::Tensor generator_after = state_of(generator());

    seed(9);
    Training training(device(), 0.2, 8);
    Graph graph(device());
    graph.capture([&] { training.step(); }, {.warmup = 1, .branches = 4, .restore = restore});
    const BranchInfo branches = *graph.info().branches;
    EXPECT_GT(branches.serial_us, 0);
    EXPECT_GT(branches.rebuilt_us, 0);
    EXPECT_GT(branches.floor_us, 0);
    EXPECT_THAT(branches.untimed, IsEmpty());
    EXPECT_EQ(branches.rebuilt, branches.rebuilt_us <= 0.98 * branches.serial_us);
    expect_same(training.state(), expected.state(), "after the capture");
    EXPECT_TRUE(same(state_of(generator()), generator_after));
  }
}

// What a trial would write cannot be put back where nobody knows what it is.
TEST_P(BranchesOnCudaTest, AStepWithNodesOutsideAnyOperationIsNotTried) {
  const at::Tensor marks = at::zeros({8}, at::TensorOptions(device()).dtype(at::kByte));
  Graph graph(device());
  bool recording = false;
  graph.capture(
      [&] {
        independent();
        recording =
            is_capturing() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
        if (!recording) return;
        ASSERT_EQ(cudaMemsetAsync(marks.mutable_data_ptr(), 7, 8, c10::cuda::getCurrentCUDAStream().stream()),
                  cudaSuccess);
      },
      {.branches = 4});
  EXPECT_TRUE(recording);
  EXPECT_THAT(graph.info().branches->untimed, HasSubstr("what 'nodes outside any operation' writes is not known"));
  EXPECT_TRUE(same(marks, at::zeros_like(marks)));
  graph.replay();
  EXPECT_TRUE(same(marks, at::full_like(marks, 7)));
}

TEST_P(BranchesOnCudaTest, AStepThatHasNeverRunIsNotTried) {
  Graph graph(device());
  independent();
  CaptureScope scope(graph, {.warmup = 0, .branches = 4});
  independent();
  scope.end();
  EXPECT_THAT(graph.info().branches->untimed, HasSubstr("warmup = 0"));
  expect_like_eager(graph);
}

TEST_P(BranchesOnCudaTest, AStepWhoseMemoryIsNotInTheGraphsPoolStaysAsItIs) {
  const GraphPool other(device());
  const auto elsewhere = [&] {
    // What came last goes first in torch.
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(0, other.id(), [](cudaStream_t) { return true; });
    independent();
    c10::cuda::CUDACachingAllocator::endAllocateToPool(0, other.id());
    c10::cuda::CUDACachingAllocator::releasePool(0, other.id());
  };
  Graph graph(device());
  graph.capture(elsewhere, branched());
  EXPECT_FALSE(graph.info().branches->rebuilt);
  EXPECT_THAT(graph.info().branches->reason, HasSubstr("not all in the graph's pool"));
  expect_like_eager(graph);
}

TEST_P(BranchesOnCudaTest, WorkspacesAreTorchsOwnAgainAfterTheCapture) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    (void)at::mm(x, x);
  }
  const auto before = graph::BlasWorkspaces::spans_on(stream.stream());
  EXPECT_EQ(before.empty(), !torch_abi::keeps_workspaces());
  CaptureOptions options = branched();
  options.stream = stream.unwrap();
  Graph graph(device());
  graph.capture([&] { independent(); }, options);
  EXPECT_EQ(graph::BlasWorkspaces::spans_on(stream.stream()), before);
  Graph failing(device());
  EXPECT_ANY_THROW(failing.capture(
      [&] {
        independent();
        (void)y.sum().item<float>();
      },
      options));
  EXPECT_EQ(graph::BlasWorkspaces::spans_on(stream.stream()), before);
}

TEST_P(BranchesOnCudaTest, AGraphOfSeveralStreamsStaysAsItIs) {
  const std::string reason = reason_with([&] {
    const c10::cuda::CUDAStream main = c10::cuda::getCurrentCUDAStream(), side = c10::cuda::getStreamFromPool();
    at::cuda::CUDAEvent fork, join;
    fork.record(main);
    fork.block(side);
    at::Tensor other;
    {
      const c10::cuda::CUDAStreamGuard on(side);
      other = x + 1;
    }
    const at::Tensor here = x + 2;
    join.record(side);
    join.block(main);
  });
  EXPECT_THAT(reason, HasSubstr("captured on several streams"));
}

TEST_P(BranchesOnCudaTest, AStepThatCallsTheHostStaysAsItIsAndIsNotTried) {
  std::atomic<int> calls = 0;
  const auto call_host = [&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    ASSERT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    if (status != cudaStreamCaptureStatusActive) return;
    ASSERT_EQ(cudaLaunchHostFunc(
                  stream, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &calls),
              cudaSuccess);
  };
  EXPECT_THAT(reason_with(call_host), HasSubstr("host"));
  synchronize();
  EXPECT_EQ(calls, 3) << "once for each replay";
}

// A conditional node whose body is empty, put behind what is captured so far.
void add_conditional(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* tips = nullptr;
  const cudaGraphEdgeData* data = nullptr;
  std::size_t count = 0;
  ASSERT_EQ(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &tips, &data, &count), cudaSuccess);
  if (status != cudaStreamCaptureStatusActive) return;
  cudaGraphConditionalHandle handle = 0;
  ASSERT_EQ(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault), cudaSuccess);
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeIf;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
  ASSERT_EQ(cudaGraphAddNode(&node, graph, tips, data, count, &params), cudaSuccess);
  ASSERT_EQ(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies),
            cudaSuccess);
}

TEST_P(BranchesOnCudaTest, AStepWithAConditionalNodeStaysAsItIs) {
  EXPECT_THAT(reason_with([] { add_conditional(c10::cuda::getCurrentCUDAStream().stream()); }),
              HasSubstr("conditional"));
}

TEST_P(BranchesOnCudaTest, NodesOutsideAnyOperationAreABarrier) {
  const at::Tensor marks = at::zeros({8}, at::TensorOptions(device()).dtype(at::kByte));
  Graph graph(device());
  graph.capture(
      [&] {
        independent();
        ASSERT_EQ(cudaMemsetAsync(marks.mutable_data_ptr(), 7, 8, c10::cuda::getCurrentCUDAStream().stream()),
                  cudaSuccess);
        independent();
      },
      branched());
  const BranchInfo branches = *graph.info().branches;
  EXPECT_TRUE(branches.rebuilt) << branches.reason;
  EXPECT_TRUE(std::any_of(branches.obstacles.begin(), branches.obstacles.end(),
                          [](const BranchObstacle& obstacle) { return obstacle.cause == "barrier"; }));
  expect_like_eager(graph);
  EXPECT_TRUE(same(marks, at::full_like(marks, 7)));
}

TEST_P(BranchesOnCudaTest, WithoutMemoryForWorkspacesTheGraphStaysAsItIs) {
  if (!torch_abi::keeps_workspaces()) GTEST_SKIP() << "products allocate their own";
  independent();
  Graph warm(device());
  warm.capture([&] { independent(); });  // what every capture needs is there
  Graph graph(device());
  {
    const NoMoreMemory none;
    graph.capture([&] { independent(); }, {.pool = warm.pool(), .branches = 4});
  }
  const BranchInfo branches = *graph.info().branches;
  EXPECT_FALSE(branches.rebuilt);
  EXPECT_THAT(branches.reason, AllOf(HasSubstr("no memory for 4 workspaces"), HasSubstr("smaller 'workspaces'")));
  expect_like_eager(graph);
}

TEST_P(BranchesOnCudaTest, WithoutMemoryForACopyOfWhatTheStepWritesThereIsNoTrial) {
  const at::Tensor large = at::zeros({1 << 30}, at::TensorOptions(device()).dtype(at::kByte));
  Graph graph(device());
  {
    const NoMoreMemory none(std::size_t{512} << 20U);
    graph.capture(
        [&] {
          independent();
          large.add_(1);
        },
        {.warmup = 1, .branches = kAutoBranches});
  }
  const BranchInfo branches = *graph.info().branches;
  EXPECT_FALSE(branches.rebuilt);
  EXPECT_THAT(branches.reason, HasSubstr("a trial needs a copy of what the step writes, 1.0 GiB, and the device has "));
  const at::Tensor before = large.narrow(0, 0, 4).clone();
  graph.replay();
  EXPECT_TRUE(same(large.narrow(0, 0, 4), before + 1));
  expect_like_eager(graph);
}

TEST_P(BranchesOnCudaTest, AMemoryLimitIsKeptAndTold) {
  Graph none(device()), some(device());
  none.capture([&] { independent(); }, {.branches = 4, .parallel = {.memory_limit = 0}});
  const BranchInfo without = *none.info().branches;
  EXPECT_EQ(without.workspace_bytes, 0U);
  EXPECT_EQ(without.held_bytes, 0U);
  ASSERT_FALSE(without.warnings.empty());
  EXPECT_THAT(without.warnings[0], HasSubstr("memory_limit leaves no room for 4 workspaces"));
  expect_like_eager(none);
  constexpr std::size_t kLimit = 100 << 20;
  some.capture([&] { independent(); }, {.branches = 4, .parallel = {.memory_limit = kLimit}});
  const BranchInfo limited = *some.info().branches;
  EXPECT_LE(limited.workspace_bytes + limited.held_bytes, kLimit);
  EXPECT_GT(limited.workspace_bytes + limited.held_bytes, 0U);
  expect_like_eager(some);
}

TEST_P(BranchesOnCudaTest, LanesThatNobodyAskedForAreTakenWhereATrialFindsThemFaster) {
  seed(9);
  Training expected(device(), 0.0, 8);
  seed(9);
  Training training(device(), 0.0, 8);
  Graph graph(device());
  graph.capture([&] { training.step(); }, {.warmup = 1, .branches = kAutoBranches});
  const BranchInfo branches = *graph.info().branches;
  EXPECT_TRUE(branches.automatic);
  EXPECT_EQ(branches.branches, 4);
  EXPECT_GT(branches.serial_us, 0);
  EXPECT_GT(branches.rebuilt_us, 0);
  EXPECT_EQ(branches.rebuilt, branches.rebuilt_us <= 0.98 * branches.serial_us);
  EXPECT_LE(branches.workspace_bytes + branches.held_bytes, std::size_t{256} << 20U);
  expect_same(training.state(), expected.state(), "after the capture");
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    expected.step();
  }
  expect_same(training.state(), expected.state(), "after replays");
}

TEST_P(BranchesOnCudaTest, LanesThatNobodyAskedForAreNotTakenUntimed) {
  Graph cold(device()), unknown(device()), shared(device()), late(device()), communal(device());
  independent();
  {
    CaptureScope scope(cold, {.warmup = 0, .branches = kAutoBranches});
    independent();
    scope.end();
  }
  EXPECT_THAT(cold.info().branches->reason, HasSubstr("has not run yet"));
  expect_like_eager(cold);

  GraphPool pool(device());
  communal.capture([&] { y = x + 1; }, {.pool = pool});
  shared.capture([&] { independent(); }, {.pool = pool, .branches = kAutoBranches});
  EXPECT_THAT(shared.info().branches->reason, HasSubstr("the pool is shared"));
  expect_like_eager(shared);

  late.capture([&] { independent(); }, {.branches = kAutoBranches, .instantiate = false});
  EXPECT_THAT(late.info().branches->reason, HasSubstr("the executable is made later"));
  expect_like_eager(late);

  const at::Tensor marks = at::zeros({8}, at::TensorOptions(device()).dtype(at::kByte));
  unknown.capture(
      [&] {
        independent();
        if (!is_capturing()) return;
        (void)cudaMemsetAsync(marks.mutable_data_ptr(), 7, 8, c10::cuda::getCurrentCUDAStream().stream());
      },
      {.branches = kAutoBranches});
  EXPECT_THAT(unknown.info().branches->reason, HasSubstr("writes is not known"));
  expect_like_eager(unknown);
  for (const Graph* graph : {&cold, &shared, &late, &unknown}) {
    EXPECT_FALSE(graph->info().branches->rebuilt);
    const bool has_workspaces = graph == &unknown && torch_abi::keeps_workspaces();
    EXPECT_EQ(graph->info().branches->workspace_bytes != 0, has_workspaces)
        << "the others: found out before the capture";
  }
}

TEST_P(BranchesOnCudaTest, LanesThatNobodyAskedForNeedATraceAndDoWithoutIt) {
  Graph graph(device());
  graph.capture([&] { independent(); }, {.branches = kAutoBranches, .trace = false});
  EXPECT_FALSE(graph.info().branches.has_value());
  expect_like_eager(graph);
}

TEST_P(BranchesOnCudaTest, TheSizeOfAWorkspaceFollowsTorchsRule) {
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  if (major != 9) GTEST_SKIP() << "torch changed its mind about other devices";
  const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  EXPECT_EQ(torch_abi::gemm_workspace_bytes(), torch_abi::workspace_bytes_of(config == nullptr ? "" : config, major));
}

TEST_P(BranchesOnCudaTest, WorkspacesThatProductsAllocateAreHeldNoMoreThanTheBranchesNeed) {
  std::vector<at::Tensor> products;
  const auto step = [&] {
    products.clear();
    for (int i = 0; i < 24; ++i) products.push_back(at::mm(x, x));
  };
  Graph graph(device());
  graph.capture(step, branched());
  const BranchInfo branches = *graph.info().branches;
  const std::size_t workspace = std::max(torch_abi::gemm_workspace_bytes(), at::cuda::getCUDABlasLtWorkspaceSize());
  EXPECT_LE(branches.held_bytes, static_cast<std::size_t>(branches.branches) * workspace);
  EXPECT_TRUE(branches.rebuilt) << branches.reason;
  graph.replay();
  for (const at::Tensor& product : products) EXPECT_TRUE(same(product, at::mm(x, x)));
}

TEST_P(BranchesOnCudaTest, NondeterministicOperatorsAreNamed) {
  const at::Tensor index = randint(8, {64}), target = at::zeros({8, 64}, at::TensorOptions(device()));
  Graph graph(device());
  graph.capture(
      [&] {
        independent();
        target.index_add_(0, index, x);
      },
      branched());
  const std::vector<std::string> warnings = graph.info().branches->warnings;
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("aten::index_add_"), HasSubstr("other bits")));
}

TEST_P(BranchesOnCudaTest, FiftyCapturesWithBranchesGrowNothing) {
  const auto capture_once = [&] {
    Graph graph(device());
    graph.capture([&] { independent(); }, {.warmup = 1, .branches = 4});
    graph.replay();
  };
  const auto reserved = [] {
    c10::cuda::CUDACachingAllocator::emptyCache();
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  for (int i = 0; i < 3; ++i) capture_once();
  synchronize();
  y = at::Tensor();
  const auto before = reserved();
  for (int i = 0; i < 50; ++i) capture_once();
  synchronize();
  y = at::Tensor();
  EXPECT_LE(reserved(), before);
}

}  // namespace
}  // namespace pianola::testing::branches_cuda_test
