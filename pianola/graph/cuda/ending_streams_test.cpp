#include <pianola/graph/testing/memory_device_test.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zero.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace pianola::testing::ending_streams_test {
namespace {

/// Replays on streams that torch has not made, and that their owner destroys.
class EndingStreamsTest : public MemoryDeviceTest {
 protected:
  /// What it launches goes on when the stream is destroyed.
  static void on_a_stream_that_ends(const std::function<void(cudaStream_t)>& work) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    {
      const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromExternal(stream, device().index()));
      work(stream);
    }
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }

  /// Has the allocator look first at what has been freed meanwhile.
  static std::int64_t bytes_in_use() {
    (void)at::empty({1}, device());
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device().index()).active_bytes[0].current;
  }
};

/// Keeps later work of a stream from its begin until it is lifted; for some seconds at most, should somebody wait for that work.
class Halt {
 public:
  Halt() = default;
  Halt(const Halt&) = delete;
  Halt& operator=(const Halt&) = delete;
  ~Halt() {
    lift();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  void put_on(cudaStream_t stream) { ASSERT_EQ(cudaLaunchHostFunc(stream, &wait, this), cudaSuccess); }
  void lift() { is_lifted_ = true; }
  [[nodiscard]] bool was_waited_for() const { return was_waited_for_; }

 private:
  static void wait(void* self) {
    auto& halt = *static_cast<Halt*>(self);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!halt.is_lifted_ && !halt.was_waited_for_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() > end) halt.was_waited_for_ = true;
    }
  }

  std::atomic<bool> is_lifted_ = false, was_waited_for_ = false;
};

// Its last replay is under way then, and what the graph lets go of is not used before it is over.
TEST_P(EndingStreamsTest, AGraphOutlivesTheStreamsThatItWasReplayedOn) {
  const at::Tensor x = randn({1 << 20}), expected = (x * x + 1).sqrt();
  at::Tensor result;
  {
    Graph graph(device());
    graph.capture([&] { result = (x * x + 1).sqrt(); }, {.warmup = 1});
    for (int i = 0; i < 8; ++i) {
      on_a_stream_that_ends([&](cudaStream_t) {
        result.zero_();
        graph.replay();
      });
    }
  }
  synchronize();
  EXPECT_TRUE(same(result, expected));
}

// The second stream waits for the first, whose mark it makes anew. The pool stays: where one ends, its memory goes back to the driver,
// which waits for the device.
TEST_P(EndingStreamsTest, WhatAGraphReadIsInUseUntilItsReplaysAreOverOnWhicheverThreadTheyWere) {
  for (const bool on_another_thread : {false, true}) {
    const std::int64_t before = bytes_in_use();
    const auto is_in_use = [&] { return bytes_in_use() - before >= static_cast<std::int64_t>(32 * kMiB); };
    const GraphPool pool(device());
    Graph graph(device());
    Halt halt;
    at::Tensor x = ones(64), sum;
    graph.capture([&] { sum = x.sum(); }, {.pool = pool});
    x.reset();
    graph.replay();
    synchronize();
    const auto replay = [&] {
      on_a_stream_that_ends([&](cudaStream_t stream) {
        halt.put_on(stream);
        graph.replay();
      });
      on_a_stream_that_ends([&](cudaStream_t) { graph.replay(); });
    };
    on_another_thread ? std::thread(replay).join() : replay();
    sum.reset();
    graph.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for marks that wait for nothing
    EXPECT_TRUE(is_in_use());
    EXPECT_FALSE(halt.was_waited_for());
    halt.lift();
    synchronize();
    EXPECT_FALSE(is_in_use()) << "the replays are over";
  }
}

// It is refused in its turn with the pool, and with those generators whose locks come before that of the default one.
TEST_P(EndingStreamsTest, NobodyAsksTheStreamOfAReplayThatWasRefused) {
  std::vector<at::Generator> all = {generator()}, expected_from = {generator().clone()};
  for (int i = 0; i < 8; ++i) {
    all.push_back(generator().clone());
    expected_from.push_back(generator().clone());
  }
  const auto draw_from = [](const at::Generator& from) { return at::rand({64}, from, at::TensorOptions(device())); };
  at::Tensor drawn_first;
  std::vector<at::Tensor> drawn(all.size());
  Graph first(device()), second(device());
  first.capture([&] { drawn_first = draw_from(all[0]); });
  second.capture([&] { std::transform(all.begin(), all.end(), drawn.begin(), draw_from); },
                 {.generators = {all.begin() + 1, all.end()}});
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    first.replay();
  }
  on_a_stream_that_ends([&](cudaStream_t) {
    cudaGraph_t nothing = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
    EXPECT_THAT(
        refusal<UsageError>("a replay that draws behind a stream that is being captured", [&] { second.replay(); }),
        ::testing::HasSubstr("that stream is being captured"));
    ASSERT_EQ(cudaStreamEndCapture(stream.stream(), &nothing), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(nothing), cudaSuccess);
  });
  second.replay();
  synchronize();
  EXPECT_TRUE(same(drawn_first, draw_from(expected_from[0])));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same(drawn[i], draw_from(expected_from[i]))) << i;
}

INSTANTIATE_TEST_SUITE_P(On, EndingStreamsTest, ::testing::Values("cuda"), device_name);

}  // namespace
}  // namespace pianola::testing::ending_streams_test
