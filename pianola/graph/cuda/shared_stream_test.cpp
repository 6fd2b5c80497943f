#include <pianola/graph/cuda/cuda_pool.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/torch_abi/cuda/workspace_size.hpp>
#include <pianola/torch_abi/cuda/workspace_table.hpp>

#include <ATen/ops/mm.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace pianola::testing::shared_stream_test {
namespace {

class SharedStreamTest : public DeviceTest {
 protected:
  /// Replays two graphs in turn on two streams, whose matrix products use workspaces. @param options  Of the capture of each.
  static void expect_undisturbed(const std::function<CaptureOptions()>& options) {
    struct Work {
      Graph graph{device()};
      at::Tensor a, b, result, expected;
    };
    std::array<Work, 2> works;
    for (std::size_t i = 0; i < works.size(); ++i) {
      Work& work = works[i];
      work.a = randn({16, 32768}, 2 * i + 1);
      work.b = randn({32768, 16}, 2 * i + 2);
      const auto step = [&] {
        const at::Tensor doubled = work.a * 2;
        for (int repeat = 0; repeat < 16; ++repeat) work.result = at::mm(doubled, work.b);
      };
      step();
      work.expected = work.result;
      work.graph.capture(step, options());
    }
    synchronize();
    const std::array streams = {c10::cuda::getStreamFromPool(), c10::cuda::getStreamFromPool()};
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < works.size(); ++i) {
        const c10::cuda::CUDAStreamGuard on(streams[i]);
        works[i].graph.replay();
      }
    }
    synchronize();
    for (const Work& work : works) EXPECT_TRUE(same(work.result, work.expected));
  }
};

// Products with a long inner dimension split it over blocks and gather the parts in cuBLAS's workspace.
TEST_P(SharedStreamTest, GraphsCapturedOnOneStreamRunAtOnceWithoutSharingAWorkspace) {
  const c10::cuda::CUDAStream capture_stream = c10::cuda::getStreamFromPool();
  expect_undisturbed([&]() -> CaptureOptions { return {.stream = capture_stream.unwrap()}; });
}

// They share a workspace and scratch memory, so the pool has them run one after the other.
TEST_P(SharedStreamTest, GraphsOfOnePoolAreReplayedOnTwoStreamsWithoutDisturbingEachOther) {
  const GraphPool pool(device());
  expect_undisturbed([&]() -> CaptureOptions { return {.pool = pool}; });
}

TEST_P(SharedStreamTest, GraphsOfPoolsOfAFamilyAreReplayedOnTwoStreamsWithoutDisturbingEachOther) {
  const GraphPoolFamily family;
  expect_undisturbed([&]() -> CaptureOptions { return {.pool = family.make_pool(device())}; });
}

// A workspace is 32 MiB on a Hopper GPU, and each of these graphs would have one.
TEST_P(SharedStreamTest, PoolsOfAFamilyHaveOneWorkspaceInCommon) {
  if (!torch_abi::keeps_workspaces()) GTEST_SKIP() << "products allocate their own";
  const auto allocated = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current; };
  const at::Tensor x = randn({16, 16});
  const auto taken_by = [&](const std::function<GraphPoolRef()>& pool, int warmup = 1) {
    constexpr std::size_t kGraphs = 6;
    std::vector<Graph> graphs;
    std::vector<at::Tensor> results(kGraphs);
    const auto before = allocated();
    for (at::Tensor& result : results) {
      graphs.emplace_back(device()).capture([&] { result = at::mm(x, x); }, {.warmup = warmup, .pool = pool()});
    }
    synchronize();
    const auto taken = allocated() - before;
    for (std::size_t i = 0; i < kGraphs; ++i) {
      graphs[i].replay();
      EXPECT_TRUE(same(results[i], at::mm(x, x)));
    }
    return taken;
  };
  const auto workspace = static_cast<std::int64_t>(torch_abi::gemm_workspace_bytes());
  EXPECT_GE(taken_by([&]() -> GraphPoolRef { return GraphPool(device()); }), 6 * workspace);
  const GraphPoolFamily family;
  EXPECT_LT(taken_by([&] { return family.make_pool(device()); }), 2 * workspace);
  const GraphPoolFamily other;  // each recording finds none, as on a thread of autograd's
  EXPECT_LT(taken_by([&] { return other.make_pool(device()); }, /*warmup=*/0), 2 * workspace);
}

TEST_P(SharedStreamTest, AReplayIsNotOrderedBehindAStreamThatIsBeingCaptured) {
  const GraphPool pool(device());
  const at::Tensor x = randn({64});
  at::Tensor y, z, inside;
  Graph first(device()), second(device()), other(device());
  first.capture([&] { y = x * 2; }, {.pool = pool});
  second.capture([&] { z = x * 3; }, {.pool = pool});
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    first.replay();
  }
  other.capture(
      [&] {
        inside = x * 4;
        std::thread([&] {
          EXPECT_THAT(refusal<UsageError>("a replay behind a stream that is being captured", [&] { second.replay(); }),
                      ::testing::AllOf(::testing::HasSubstr("is being captured"),
                                       ::testing::HasSubstr("nothing was launched"), ::testing::HasSubstr("fix:")));
        }).join();
      },
      {.warmup = 0, .stream = stream.unwrap()});
  second.replay();
  other.replay();
  synchronize();
  EXPECT_TRUE(same(z, x * 3));
  EXPECT_TRUE(same(inside, x * 4)) << "that capture goes on";
}

TEST_P(SharedStreamTest, EagerWorkOnTheCaptureStreamKeepsItsWorkspaceAfterTheGraphIsGone) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard on(stream);
  const at::Tensor a = randn({16, 32768});
  const at::Tensor b = randn({32768, 16}, 2);
  const at::Tensor expected = at::mm(a, b);
  {
    at::Tensor result;
    Graph graph(device());
    graph.capture([&] { result = at::mm(a, b); }, {.warmup = 0, .stream = stream.unwrap()});
    graph.replay();
    EXPECT_TRUE(same(result, expected));
  }
  EXPECT_TRUE(same(at::mm(a, b), expected));
}

// An eager step whose loss is still held keeps AccumulateGrad nodes alive that run on the stream they were made on.
TEST_P(SharedStreamTest, CapturesABackwardPassWhileTheLossOfAnEagerStepIsHeld) {
  Mlp model(device(), 2, 3);
  const at::Tensor x = randn({8, Mlp::kWidth});
  at::Tensor held_loss = model(x).sum();
  const std::vector<at::Tensor> expected = torch::autograd::grad({held_loss}, model.parameters, {}, true);
  for (const int warmup : {0, 2}) {
    Graph graph(device());
    graph.capture([&] { model(x).sum().backward(); }, {.warmup = warmup});
    graph.replay();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same(model.parameters[i].grad(), expected[i])) << i;
      model.parameters[i].mutable_grad().reset();
    }
  }
  held_loss.backward();
  EXPECT_TRUE(same(model.parameters[0].grad(), expected[0])) << "the held graph still works";
}

// As DistributedDataParallel has them, which was made on the default stream.
TEST_P(SharedStreamTest, CapturesHooksOfGradientsThatWereSetOnAnotherStream) {
  Mlp model(device(), 2, 3);
  const at::Tensor x = randn({8, Mlp::kWidth});
  struct Hook final : torch::autograd::FunctionPostHook {
    explicit Hook(at::Tensor hooked) : leaf(std::move(hooked)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& /*inputs*/) override {
      leaf.mutable_grad().mul_(2);
      return outputs;
    }
    at::Tensor leaf;
  };
  const auto node = torch::autograd::impl::grad_accumulator(model.parameters[0]);
  const auto stream = node->stream();
  node->add_post_hook(std::make_unique<Hook>(model.parameters[0]));
  Graph graph(device());
  const auto step = [&] { model(x).sum().backward(); };
  graph.capture(step);
  EXPECT_TRUE(node->stream() == stream) << "it is put back";
  for (int i = 0; i < 3; ++i) {
    for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad().zero_();
    graph.replay();
    const at::Tensor replayed = model.parameters[0].grad().clone();
    for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad().zero_();
    step();
    EXPECT_TRUE(same(replayed, model.parameters[0].grad())) << i;
  }
}

// A warm-up into the pool that follows would compute in them, beside replays of the family's other pools.
TEST_P(SharedStreamTest, AFailedRecordingGivesAFamilyItsWorkspacesBack) {
  const GraphPoolFamily family;
  const GraphPoolRef ref = family.make_pool(device());
  auto& pool = static_cast<graph::CudaPool&>(*ref.state());
  const at::Tensor x = at::ones({64, 64}, device());
  Graph graph(device());
  const auto step = [&] {
    const at::Tensor y = at::mm(x, x);
    if (is_recording()) throw std::runtime_error("after a product");
  };
  EXPECT_THROW(graph.capture(step, {.warmup = 1, .pool = ref}), std::runtime_error);
  const std::vector<ByteSpan> of_family = pool.family()->spans();
  EXPECT_FALSE(of_family.empty());
  for (const ByteSpan& own : pool.workspaces().spans()) {
    for (const ByteSpan& shared : of_family) EXPECT_FALSE(own.overlaps(shared));
  }
}

// Whether it was recorded or warmed up, and while the graph lives on.
TEST_P(SharedStreamTest, AFailedCaptureGivesLeavesTheirNodesBack) {
  const at::Tensor leaf = at::ones({8}, at::device(device()).requires_grad(true));
  const auto node = torch::autograd::impl::grad_accumulator(leaf);
  for (const int warmup : {0, 1}) {
    Graph graph(device());
    const auto step = [&] {
      const at::Tensor y = leaf * 2;
      throw std::runtime_error("after an operation");
    };
    EXPECT_THROW(graph.capture(step, {.warmup = warmup}), std::runtime_error);
    EXPECT_EQ(torch::autograd::impl::try_get_grad_accumulator(leaf), node) << warmup;
  }
}

INSTANTIATE_TEST_SUITE_P(On, SharedStreamTest, ::testing::Values("cuda"), device_name);

}  // namespace
}  // namespace pianola::testing::shared_stream_test
