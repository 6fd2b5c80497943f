#include <pianola/graph/torch_graph.hpp>

#include <pianola/core/error.hpp>
#include <pianola/torch_abi/torch_graph.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>

namespace pianola::torch_graph_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

#if PIANOLA_TORCH_HAS_GRAPHS

// A program that knows torch alone, and asks it for the graph of a device.
class TorchGraph : public ::testing::Test {
 protected:
  TorchGraph() {
    register_tape();
    graph = at::create_graph_impl(at::kCPU);
  }
  void capture(const std::function<void()>& step, at::MempoolId_t pool = {0, 0}) {
    graph->capture_begin(pool);
    step();
    graph->capture_end();
  }

  std::unique_ptr<at::GraphImplInterface> graph;
  at::Tensor x = at::arange(4).to(at::kFloat), y;
};

TEST_F(TorchGraph, ReplaysOnTheTape) {
  capture([&] { y = x * 2 + 1; });
  for (int i = 1; i < 4; ++i) {
    x.add_(i);
    graph->replay();
    EXPECT_TRUE(y.equal(x * 2 + 1)) << "replay " << i;
  }
}

TEST_F(TorchGraph, CapturesAgainAfterReset) {
  capture([&] { y = x * 2; });
  graph->reset();
  capture([&] { y = x * 3; });
  x.fill_(5);
  graph->replay();
  EXPECT_EQ(y[0].item<float>(), 15);
}

TEST_F(TorchGraph, ResetEndsACaptureThatIsOpen) {
  graph->capture_begin();
  y = x * 2;
  graph->reset();
  capture([&] { y = x * 3; });
  graph->replay();
  EXPECT_EQ(y[1].item<float>(), 3);
}

TEST_F(TorchGraph, SharesAPoolByItsName) {
  const auto second = at::create_graph_impl(at::kCPU);
  capture([&] { y = x * 2; });
  second->capture_begin(graph->pool());
  const at::Tensor z = x * 3;
  second->capture_end();
  EXPECT_EQ(second->pool(), graph->pool());
  graph->replay();
  second->replay();
  EXPECT_EQ(z[1].item<float>(), 3);
}

TEST_F(TorchGraph, IsDumpedAsDot) {
  const auto file = std::filesystem::temp_directory_path() / "pianola_torch_graph.dot";
  graph->enable_debug_mode();
  capture([&] { y = x * 2; });
  graph->debug_dump(file);
  std::ifstream in(file);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(in), {}), HasSubstr("aten::mul"));
  std::filesystem::remove(file);
}

TEST_F(TorchGraph, RefusesWhatAGraphRefuses) {
  EXPECT_THAT([&] { graph->replay(); }, ThrowsMessage<UsageError>(HasSubstr("holds no capture")));
  EXPECT_THAT([&] { graph->capture_end(); }, ThrowsMessage<UsageError>(HasSubstr("while no capture is open")));
  capture([&] { y = x * 2; });
  EXPECT_THAT([&] { graph->capture_begin(); }, ThrowsMessage<UsageError>(HasSubstr("holds a capture already")));
}

TEST_F(TorchGraph, NamesAReadOnTheHostAndCapturesAgain) {
  graph->capture_begin();
  y = x * 2;
  y.sum().item();
  EXPECT_THAT([&] { graph->capture_end(); }, ThrowsMessage<CaptureError>(HasSubstr("aten::item")));
  capture([&] { y = x * 3; });
  graph->replay();
  EXPECT_EQ(y[1].item<float>(), 3);
}

#else

TEST(TorchGraph, NeedsANewerTorch) {
  EXPECT_THAT(register_tape, ThrowsMessage<UnsupportedError>(HasSubstr("use torch 2.12 or newer")));
}

#endif

}  // namespace
}  // namespace pianola::torch_graph_test
