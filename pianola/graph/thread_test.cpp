#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#if PIANOLA_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <pthread.h>

#include <atomic>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace pianola::thread_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::expect_replays_equal_eager;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
  EXPECT_LT(graph.info().pool_bytes, reference.info().pool_bytes + (std::size_t{8} << 20));
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

// Draws masks until told to stop. torch refuses to draw on other threads while a capture records on CUDA: then it asks again.
class Drawing {
 public:
  explicit Drawing(c10::Device device, std::size_t most = 1000)
      : thread_([this, device, most] { draw(device, most); }) {}
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;
  ~Drawing() { (void)masks(); }

  void wait_for(std::size_t more) const {
    const std::size_t wanted = drawn_ + more;
    while (drawn_ < wanted && !done_) std::this_thread::yield();
  }
  [[nodiscard]] const std::vector<at::Tensor>& masks() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return masks_;
  }
  static at::Tensor mask(c10::Device device) { return at::empty({128}, at::TensorOptions(device)).bernoulli_(0.5); }

 private:
  void draw(c10::Device device, std::size_t most) {
    while (!stop_ && masks_.size() < most) {
      try {
        masks_.push_back(mask(device));
        ++drawn_;
      } catch (const c10::Error&) {
        std::this_thread::yield();
      }
    }
    done_ = true;
  }

  std::vector<at::Tensor> masks_;
  std::atomic<std::size_t> drawn_{0};
  std::atomic<bool> stop_{false}, done_{false};
  std::thread thread_;  // after what it uses
};

std::set<std::string> distinct(const std::vector<at::Tensor>& masks) {
  std::set<std::string> all;
  for (const at::Tensor& mask : masks) {
    const at::Tensor host = mask.to(at::kChar).cpu();
    all.emplace(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  }
  return all;
}

TEST_P(ThreadTest, CapturesNeverMakeAnotherThreadDrawTheSameNumbersTwice) {
  Training training(device(), 0.3);
  training.step();
  Drawing other(device());
  for (int i = 0; i < 8; ++i) {
    other.wait_for(3);
    Graph graph(device());
    graph.capture([&] { training.step(); });
    graph.replay();
  }
  for (int i = 0; i < 3; ++i) {
    other.wait_for(3);
    Graph graph(device());
    EXPECT_THROW(graph.capture([&] {
      training.step();
      throw std::out_of_range("mine");
    }),
                 std::out_of_range);
  }
  other.wait_for(3);
  const std::vector<at::Tensor>& masks = other.masks();
  EXPECT_GT(masks.size(), 30U);
  EXPECT_EQ(distinct(masks).size(), masks.size()) << "of another thread's masks are distinct";
}

TEST_P(ThreadTest, ACaptureThatDrawsNothingLeavesAnotherThreadsNumbersAlone) {
  Training training(device());
  training.step();
  const std::uint64_t chosen = generator().current_seed();
  std::vector<at::Tensor> theirs;
  {
    Drawing other(device(), 300);
    for (int i = 0; i < 8; ++i) {
      other.wait_for(3);
      Graph graph(device());
      graph.capture([&] { training.step(); });
      EXPECT_THAT(graph.info().warnings, IsEmpty());
    }
    theirs = other.masks();
  }
  EXPECT_EQ(generator().current_seed(), chosen);
  seed(chosen);
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    ASSERT_TRUE(same(theirs[i], Drawing::mask(device()))) << "mask " << i << " of " << theirs.size();
  }
}

TEST_P(ThreadTest, AGeneratorThatAnotherThreadMovedIsNotPutBackAndTheGraphSaysSo) {
  const at::Tensor x = randn({64});
  at::Tensor theirs;
  int runs = 0;
  const auto step = [&] {
    x.mul_(at::empty_like(x).bernoulli_(0.5));
    if (runs++ == 0) on_another_thread([&] { theirs = Drawing::mask(device()); });
  };
  const at::Tensor before = state_of(generator());
  Graph graph(device());
  graph.capture(step, {.warmup = 1});
  EXPECT_FALSE(same(state_of(generator()), before));
  EXPECT_THAT(graph.info().warnings,
              ElementsAre(AllOf(HasSubstr("another thread drew from a generator of"), HasSubstr("is not put back"))));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(same(Drawing::mask(device()), theirs));

  const at::Tensor there = state_of(generator());
  Graph again(device());
  again.capture(step, {.warmup = 1});
  EXPECT_TRUE(same(state_of(generator()), there)) << "nobody else drew";
  EXPECT_THAT(again.info().warnings, IsEmpty());
}

// Draws from the default generator are no draws from one that is named, nor the other way round.
TEST_P(ThreadTest, AGeneratorOfItsOwnIsPutBackWhateverOtherThreadsDraw) {
  at::Generator own = generator().clone();
  own.set_current_seed(7);
  const at::Tensor x = randn({64}), before = state_of(own);
  Graph theirs(device());  // whose replays draw unseen
  {
    at::Generator another = generator().clone();
    const at::Tensor y = randn({64});
    theirs.capture([&] { y.uniform_(0, 1, another); }, {.generators = {another}});
  }
  Drawing other(device());
  std::jthread replaying([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      theirs.replay();
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20; ++i) {
    other.wait_for(3);
    Graph graph(device());
    graph.capture([&] { x.add_(at::empty_like(x).uniform_(0, 1, own)); }, {.generators = {own}});
    EXPECT_THAT(graph.info().warnings, IsEmpty());
    EXPECT_TRUE(same(state_of(own), before)) << "capture " << i;
  }
}

// Each from a generator of its own, so that eager can tell the numbers.
TEST_P(ThreadTest, TwoThreadsThatDrawCaptureAtTheSameTime) {
  constexpr int kRounds = 20;
  std::vector<at::Tensor> results(2), expected(2);
  const auto work = [&](std::size_t i) {
    at::Generator own = generator().clone();
    own.set_current_seed(31 + i);
    const at::Tensor x = randn({64}, i + 1);
    results[i] = at::zeros_like(x);
    for (int round = 0; round < kRounds; ++round) {
      Graph graph(device());
      const auto step = [&] { results[i].mul_(0.5).add_(at::empty_like(x).uniform_(0, 1, own)).mul_(x); };
      graph.capture(step, {.warmup = 1, .generators = {own}});
      graph.replay();
      graph.replay();
    }
  };
  for (const std::size_t i : {0, 1}) {
    at::Generator own = generator().clone();
    own.set_current_seed(31 + i);
    const at::Tensor x = randn({64}, i + 1);
    expected[i] = at::zeros_like(x);
    for (int run = 0; run < 2 * kRounds; ++run) {
      expected[i].mul_(0.5).add_(at::empty_like(x).uniform_(0, 1, own)).mul_(x);
    }
  }
  std::jthread other([&] { work(1); });
  work(0);
  other.join();
  synchronize();
  for (const std::size_t i : {0, 1}) EXPECT_TRUE(same(results[i], expected[i])) << "thread " << i;
}

// Both draw from the default generator of the CPU. On CUDA torch lets one capture at a time draw from a generator.
TEST_P(ThreadTest, TwoThreadsDrawFromOneGeneratorInCapturesThatAreOpenAtOnce) {
  if (on_cuda()) GTEST_SKIP() << "torch lets one capture at a time draw from a generator";
  const at::Tensor x = randn({64}), y = randn({64}, 2);
  const std::uint64_t chosen = generator().current_seed();
  Graph first(device()), second(device());
  {
    CaptureScope scope(first);
    x.bernoulli_(0.5);
    on_another_thread([&] {
      CaptureScope inner(second);
      y.bernoulli_(0.5);
      inner.end();
    });
    x.mul_(at::empty_like(x).bernoulli_(0.5));
    scope.end();
  }
  EXPECT_EQ(generator().current_seed(), chosen);
  seed(5);
  first.replay();
  second.replay();
  seed(5);
  const at::Tensor expected_x = at::empty_like(x).bernoulli_(0.5);
  expected_x.mul_(at::empty_like(x).bernoulli_(0.5));
  EXPECT_TRUE(same(x, expected_x));
  EXPECT_TRUE(same(y, at::empty_like(y).bernoulli_(0.5)));
}

TEST_P(ThreadTest, AReplayInsideACaptureIsRefused) {
  Training inner(device()), outer(device());
  Graph graph(device()), around(device());
  graph.capture([&] { inner.step(); });
  for (const int warmup : {0, 1}) {
    EXPECT_THAT(refusal<UsageError>("a replay inside a capture",
                                    [&] {
                                      around.capture(
                                          [&] {
                                            outer.forward();
                                            graph.replay();
                                          },
                                          {.warmup = warmup});
                                    }),
                AllOf(HasSubstr("replay() was called while a capture is open"), HasSubstr("graphs do not nest"),
                      HasSubstr("nothing was launched"), HasSubstr("fix:")));
  }
  around.capture([&] { outer.step(); });
  expect_replays_equal_eager(graph, inner);
}

TEST_P(ThreadTest, ACaptureEndsOnTheThreadThatBeganIt) {
  Training graphed(device());
  graphed.step();
  graphed = Training(device());
  Graph graph(device());
  CaptureScope scope(graph);
  on_another_thread([&] {
    EXPECT_THAT(refusal<UsageError>("end() on another thread", [&] { scope.end(); }),
                AllOf(HasSubstr("end() was called on another thread than the one that began the capture"),
                      HasSubstr("the capture continues"), HasSubstr("fix:")));
    EXPECT_THROW(scope.fail(std::make_exception_ptr(7)), UsageError);
    EXPECT_THAT(refusal<UsageError>("replay() beside a capture", [&] { graph.replay(); }),
                HasSubstr("while another thread is in a call of it"));
  });
  graphed.step();
  scope.end();
  expect_replays_equal_eager(graph, graphed);
}

// Its thread is gone, or captures no more; everybody else does. On CUDA the stream's capture would stay open.
class TapeThreadTest : public ThreadTest {};
INSTANTIATE_TEST_SUITE_P(On, TapeThreadTest, ::testing::Values("cpu"), testing::device_name);

TEST_P(TapeThreadTest, ACaptureThatIsDroppedOnAnotherThreadLeavesNothingBehind) {
  const at::Tensor x = randn({8});
  const at::Tensor before = x.clone();
  auto graph = std::make_unique<Graph>(device());
  std::unique_ptr<CaptureScope> scope;
  on_another_thread([&] {
    x.mul(2);
    scope = std::make_unique<CaptureScope>(*graph);
    x.mul_(2);
  });
  scope.reset();
  graph.reset();
  EXPECT_TRUE(same(x, before));
  EXPECT_FALSE(is_capturing());
  Training graphed(device());
  Graph other(device());
  other.capture([&] { graphed.step(); });
  expect_replays_equal_eager(other, graphed);
}

TEST_P(ThreadTest, TwoThreadsInOneGraphGetAnErrorAndNoCrash) {
  at::Tensor x = randn({64, 64}), y;
  Graph graph(device());
  const auto capture = [&] { graph.capture([&] { y = x.mm(x).relu().mm(x); }, {.warmup = 0}); };
  x.mm(x);
  capture();
  std::atomic<int> replays = 0, refused = 0;
  const auto keep_replaying = [&] {
    for (int i = 0; i < 300 || (replays == 0 && i < 100'000); ++i) {
      try {
        graph.replay();
        ++replays;
      } catch (const UsageError&) {  // the other one replays, or has just dropped the capture
        ++refused;
      }
    }
  };
  const auto keep_resetting = [&] {
    x.mm(x);  // makes this thread's library handles, which no capture can
    bool is_captured = false;
    for (int i = 0; i < 100 || (!is_captured && i < 100'000); ++i) {
      try {
        is_captured = false;
        graph.reset();
        std::this_thread::yield();
        capture();
        is_captured = true;  // else nobody could replay from now on
        (void)graph.info();
      } catch (const UsageError&) {
        ++refused;
      }
    }
  };
  std::vector<std::thread> threads;
  for (const std::function<void()>& work :
       std::vector<std::function<void()>>{keep_replaying, keep_replaying, keep_resetting}) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
  std::cout << replays << " replays, " << refused << " refused" << std::endl;
  EXPECT_GT(replays, 0);
  graph.reset();
  capture();
  x.add_(1);
  graph.replay();
  synchronize();
  EXPECT_TRUE(same(y, x.mm(x).relu().mm(x)));
}

#if PIANOLA_WITH_CUDA
// torch's allocator gives nothing back to the device while anybody captures, and says so by an internal error.
TEST_P(ThreadTest, APoolThatEndsWhileAnotherThreadCapturesIsGivenBackLater) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no pools of memory";
  const auto reserved = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current; };
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  } warnings;
  const at::Tensor x = randn({1 << 20});
  const auto compute = [&] { at::Tensor((x * 2).add_(1)).sum(); };
  Graph(device()).capture(compute);
  synchronize();
  const auto before = reserved();
  {
    auto graph = std::make_unique<Graph>(device());
    graph->capture(compute, {.warmup = 0});
    graph->replay();
    synchronize();
    EXPECT_GT(reserved(), before);
    Graph open(device());
    CaptureScope scope(open);
    on_another_thread([&] {
      const c10::WarningUtils::WarningHandlerGuard listen(&warnings);
      graph.reset();
    });
    EXPECT_GT(reserved(), before) << "not while the capture is open";
    compute();
    scope.end();
  }
  synchronize();
  EXPECT_EQ(reserved(), before);
  EXPECT_THAT(warnings.texts, IsEmpty());
}

TEST_P(ThreadTest, ThreadsThatComeAndGoUseFewCaptureStreams) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has no streams";
  std::set<c10::StreamId> streams;
  for (int i = 0; i < 40; ++i) {
    on_another_thread([&] {
      at::Tensor x = randn({16, 16});
      Graph graph(device());
      graph.capture([&] {
        streams.insert(c10::cuda::getCurrentCUDAStream().id());
        x = at::mm(x, x);
      });
    });
  }
  EXPECT_EQ(streams.size(), 1U);
}

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

TEST_P(ThreadTest, AReplayInsideACaptureOfTorchIsRefused) {
  if (!on_cuda()) GTEST_SKIP() << "torch has no tape";
  Training graphed(device());
  Graph graph(device());
  graph.capture([&] { graphed.step(); });
  at::Tensor x = randn({8}), y;
  const at::Tensor input = randn({8}), converted = randn({8}).to(at::kDouble);
  at::Tensor doubled;
  Graph taking(device());
  taking.capture([&] { doubled = input * 2; }, {.inputs = {input}});
  taking.replay(std::vector<at::Tensor>{converted});
  {
    const c10::cuda::CUDAStreamGuard on_stream(c10::cuda::getStreamFromPool());
    at::cuda::CUDAGraph theirs;
    theirs.capture_begin();
    y = x * 2;
    EXPECT_THAT(
        refusal<UsageError>("a replay inside a capture of torch's", [&] { graph.replay(); }),
        AllOf(HasSubstr("is being captured by other code"), HasSubstr("nothing was launched"), HasSubstr("fix:")));
    EXPECT_THAT(refusal<UsageError>("the same with an input that has to be converted",
                                    [&] { taking.replay(std::vector<at::Tensor>{converted}); }),
                HasSubstr("is being captured by other code"));
    theirs.capture_end();
    theirs.replay();
    synchronize();
  }
  EXPECT_TRUE(same(y, x * 2)) << "their capture goes on";
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
  EXPECT_THAT(message,
              AllOf(HasSubstr("another thread called"), HasSubstr("and broke the capture"), HasSubstr("[PG707]"),
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
}  // namespace pianola::thread_test
