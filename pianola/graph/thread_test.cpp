#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#endif

#include <pthread.h>

#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::expect_replays_equal_eager;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::Training;

// What other threads and streams do while a capture is open.
class ThreadTest : public testing::DeviceTest {
 protected:
  static void on_another_thread(const std::function<void()>& work) { std::thread(work).join(); }
};
PIANOLA_ON_EVERY_DEVICE(ThreadTest);

TEST_P(ThreadTest, AnotherThreadsWorkStaysOutsideTheGraphAndThePool) {
  Training alone(device()), graphed(device());
  Graph reference(device()), graph(device());
  reference.capture([&] { alone.step(); });
  at::Tensor theirs;
  graph.capture([&] {
    graphed.forward();
    on_another_thread([&] { theirs = randn({1 << 22}) * 2; });  // 16 MB, allocated and computed
    graphed.step();
  });
  EXPECT_TRUE(same(theirs, randn({1 << 22}) * 2)) << "it ran";
  EXPECT_LT(graph.info().pool_bytes, std::size_t{8} << 20);
  if (!on_cuda()) {
    EXPECT_EQ(graph.info().types.count("aten::randn"), 0U);
  }
  theirs.zero_();
  expect_replays_equal_eager(graph, graphed);
  EXPECT_TRUE(same(theirs, at::zeros_like(theirs))) << "a replay does not write it";
}

TEST_P(ThreadTest, TwoThreadsCaptureAtTheSameTime) {
  std::vector<Training> trainings;
  std::vector<std::optional<Graph>> graphs(2);
  for (int i = 0; i < 2; ++i) trainings.emplace_back(device());
  {
    CaptureScope scope(graphs[0].emplace(device()));
    on_another_thread([&] {
      Training(device()).step();  // makes this thread's library handles, which no capture can
      CaptureScope other(graphs[1].emplace(device()));
      trainings[1].step();
      other.end();
    });
    trainings[0].step();
    scope.end();
  }
  for (std::size_t i = 0; i < 2; ++i) expect_replays_equal_eager(*graphs[i], trainings[i]);
}

#if PIANOLA_WITH_CUDA
TEST_P(ThreadTest, AnotherThreadsDeviceSynchronizationIsReportedOrSurvived) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  Training graphed(device());
  Graph graph(device());
  cudaError_t theirs = cudaSuccess;
  bool survived = true;
  const auto step = [&] {
    graphed.forward();
    on_another_thread([&] {
      theirs = cudaDeviceSynchronize();
      (void)cudaGetLastError();
    });
    graphed.step();
  };
  try {
    graph.capture(step, {.warmup = 0});
  } catch (const CaptureError& error) {
    survived = false;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("capture"), HasSubstr("fix:")));
    std::cout << "refused a device-wide synchronization of another thread: " << error.what() << std::endl;
  }
  std::cout << "cudaDeviceSynchronize() of another thread: " << cudaGetErrorString(theirs) << "; the capture "
            << (survived ? "survived" : "was refused") << std::endl;
  if (!survived) graph.capture([&] { graphed.step(); });
  expect_replays_equal_eager(graph, graphed);
}

TEST_P(ThreadTest, InModeGlobalTheCallOfAnotherThreadIsNamed) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no capture modes";
  Training graphed(device());
  const at::Tensor theirs = at::ones({4}, device());
  Graph graph(device());
  const auto load = [&] {
    pthread_setname_np(pthread_self(), "loader");
    try {
      (void)theirs.sum().item<float>();
    } catch (const c10::Error&) {  // theirs fails as well
    }
    (void)cudaGetLastError();
  };
  const std::string message = refusal<CaptureError>("a host read by another thread in mode global", [&] {
    graph.capture(
        [&] {
          graphed.forward();
          on_another_thread(load);
          graphed.step();
        },
        {.mode = CaptureMode::global});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("called by another thread, broke the capture"), HasSubstr("[PG707]"),
                             HasSubstr("thread 'loader'"), HasSubstr("thread_test.cpp:"), HasSubstr("thread_local")));
  EXPECT_THAT(message, AnyOf(HasSubstr("aten::_local_scalar_dense"), HasSubstr("aten::item"), HasSubstr("aten::sum")));
  graph.capture([&] { graphed.step(); });
  expect_replays_equal_eager(graph, graphed);
}

TEST_P(ThreadTest, ASideStreamThatIsNotJoinedIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  const at::Tensor x = randn({64});
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const auto fork = [&](bool join) {
    at::cuda::CUDAEvent forked, joined;
    const c10::cuda::CUDAStream main = c10::cuda::getCurrentCUDAStream();
    x.mul_(2);
    forked.record(main);
    forked.block(side);
    {
      const c10::cuda::CUDAStreamGuard on(side);
      x.add_(1);
      joined.record(side);
    }
    if (join) joined.block(main);
  };
  const at::Tensor before = x.clone();
  Graph graph(device());
  EXPECT_THAT(refusal<CaptureError>("a side stream that was not joined",
                                    [&] { graph.capture([&] { fork(false); }, {.warmup = 0}); }),
              AllOf(HasSubstr("904"), HasSubstr("join"), HasSubstr("fix:")));
  EXPECT_TRUE(same(x, before));
  graph.capture([&] { fork(true); }, {.warmup = 1});
  EXPECT_TRUE(same(x, before));
  graph.replay();
  graph.replay();
  EXPECT_TRUE(same(x, (before * 2 + 1) * 2 + 1));
}

TEST_P(ThreadTest, ASynchronizationByTheStepIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  const at::Tensor x = randn({64});
  Graph graph(device());
  EXPECT_THAT(refusal<CaptureError>("a device-wide synchronization by the step",
                                    [&] {
                                      graph.capture([&] {
                                        x.mul_(2);
                                        (void)cudaDeviceSynchronize();
                                        x.add_(1);
                                      });
                                    }),
              AllOf(HasSubstr("aten::add_"), HasSubstr("thread_test.cpp:"), HasSubstr("fix:")));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "no error is left behind";
}
#endif

}  // namespace
}  // namespace pianola
