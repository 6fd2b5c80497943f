#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/relu.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

namespace pianola::testing::thread_streams_test {
namespace {

using c10::cuda::CUDAStream;

class ThreadStreamsTest : public DeviceTest {
 protected:
  /// Each stream that torch hands out, at least once.
  static std::vector<CUDAStream> of_torch() {
    std::vector<CUDAStream> all;
    for (const bool high : {false, true}) {
      for (int i = 0; i < 64; ++i) all.push_back(c10::cuda::getStreamFromPool(high));
    }
    return all;
  }
};

TEST_P(ThreadStreamsTest, NoStreamThatTorchHandsOutIsCaptured) {
  std::optional<CUDAStream> captured;
  at::Tensor x = randn({8}), y;
  Graph graph(device());
  graph.capture([&] {
    captured = c10::cuda::getCurrentCUDAStream();
    y = x * 2;
  });
  for (const CUDAStream& stream : of_torch()) EXPECT_NE(stream.stream(), captured->stream());
}

TEST_P(ThreadStreamsTest, AnotherThreadUsesEveryStreamOfTorchsWhileThisOneCaptures) {
  const std::vector<CUDAStream> all = of_torch();
  at::Tensor counted = at::zeros({1}, at::TensorOptions(device()));
  std::atomic<int> rounds{0};
  synchronize();
  std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const CUDAStream& stream : all) {
        const c10::cuda::CUDAStreamGuard on(stream);
        counted.add_(1);
        stream.synchronize();
      }
      ++rounds;
    }
  });
  const at::Tensor x = randn({64, 64});
  at::Tensor y;
  for (int i = 0; i < 20 || rounds < 3; ++i) {
    Graph graph(device());
    graph.capture([&] { y = at::relu(x.mm(x)) * 2; });
    x.add_(1);
    graph.replay();
    ASSERT_TRUE(same(y, at::relu(x.mm(x)) * 2)) << "capture " << i;
  }
  other.request_stop();
  other.join();
  EXPECT_EQ(counted.item<float>(), static_cast<float>(rounds * all.size())) << "a replay counts nothing";
}

INSTANTIATE_TEST_SUITE_P(On, ThreadStreamsTest, ::testing::Values("cuda"), device_name);

}  // namespace
}  // namespace pianola::testing::thread_streams_test
