#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/op_trace.hpp>

#include <ATen/ops/mm.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace pianola::info_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using testing::same;
using testing::Training;

// What a graph tells about itself, and CaptureScope.
class InfoTest : public testing::DeviceTest {
 protected:
  static std::string dot_of(const Graph& graph) {
    const auto file = std::filesystem::temp_directory_path() /
                      ("pianola_dot_" + std::to_string(::getpid()) + "_" + GetParam() + ".dot");
    graph.dump_dot(file);
    std::ifstream in(file);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    in.close();
    std::filesystem::remove(file);
    return text;
  }

  static std::vector<std::string> operations(const Graph& graph) {
    std::vector<std::string> names;
    for (const OpRecord& op : graph.trace()->ops()) names.push_back(graph.trace()->name(op));
    return names;
  }
};
PIANOLA_ON_EVERY_DEVICE(InfoTest);

TEST_P(InfoTest, CountsNodesByTypeAndBytesAndTimes) {
  Training training(device());
  Graph graph(device());
  graph.capture([&] { training.step(); }, {.warmup = 2});
  const GraphInfo info = graph.info();
  EXPECT_EQ(info.backend, on_cuda() ? "cuda" : "tape");
  EXPECT_GT(info.nodes, 20U);
  EXPECT_EQ(std::accumulate(info.types.begin(), info.types.end(), std::size_t{0},
                            [](std::size_t sum, const auto& type) { return sum + type.second; }),
            info.nodes);
  if (on_cuda()) {
    EXPECT_EQ(info.kernels, info.types.at("kernel"));
  } else {
    EXPECT_EQ(info.types.at("aten::addmm"), 3U);
    EXPECT_EQ(info.types.at("aten::_fused_adamw_.tensor_lr"), 1U);
    EXPECT_EQ(info.kernels, 0U);
  }
  EXPECT_GE(info.edges, info.nodes - 1);
  EXPECT_GT(info.operations, 20U);
  EXPECT_GE(info.pool_bytes, training.output.nbytes());
  EXPECT_GE(info.retained_bytes, training.x.nbytes() + training.target.nbytes());
  EXPECT_FALSE(info.draws_random_numbers);
  EXPECT_GT(info.warmup_time.count(), 0);
  EXPECT_GT(info.capture_time.count(), 0);
  EXPECT_THAT(info.warnings, IsEmpty());
  EXPECT_THAT(info.report().to_text(), AllOf(HasSubstr(info.backend), HasSubstr(std::to_string(info.nodes))));
}

TEST_P(InfoTest, TellsWhetherAReplayDrawsRandomNumbers) {
  Training training(device(), 0.5);
  Graph graph(device());
  graph.capture([&] { training.step(); });
  EXPECT_TRUE(graph.info().draws_random_numbers);
}

TEST_P(InfoTest, ListsTheOperationsItRecorded) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  std::vector<at::Tensor> gradients;
  Graph graph(device());
  graph.capture([&] { gradients = torch::autograd::grad({at::relu(at::mm(x, w)).sum()}, {w}); });
  EXPECT_THAT(operations(graph), AllOf(Contains("aten::mm"), Contains("aten::relu"), Contains("aten::sum"),
                                       Contains("aten::threshold_backward")));
  const auto ops = graph.trace()->ops();
  EXPECT_EQ(graph.info().operations, ops.size());
  const auto mm = std::find_if(ops.begin(), ops.end(), [&](const OpRecord& op) {
    return !op.backward && graph.trace()->name(op) == "aten::mm";
  });
  ASSERT_NE(mm, ops.end());
  EXPECT_EQ(graph.trace()->inputs(*mm)[0].address, x.data_ptr());
  EXPECT_THAT(graph.trace()->place(*mm), HasSubstr("info_test.cpp"));
  EXPECT_EQ(graph.trace()->nodes(*mm).empty(), !on_cuda()) << "a CUDA operation knows its nodes";
  EXPECT_TRUE(std::any_of(ops.begin(), ops.end(), [](const OpRecord& op) { return op.backward; }));
}

TEST_P(InfoTest, HasNoOperationsWithTheTraceOff) {
  const at::Tensor x = randn({4, 16});
  Graph graph(device());
  graph.capture([&] { x.mul_(2); }, {.trace = false});
  EXPECT_EQ(graph.trace(), nullptr);
  EXPECT_EQ(graph.info().operations, 0U);
  EXPECT_EQ(graph.info().nodes, 1U);
}

TEST_P(InfoTest, WritesItsNodesForGraphviz) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2);
  Graph graph(device());
  graph.capture([&] { x.copy_(at::relu(at::mm(x, w))); });
  EXPECT_THAT(dot_of(graph),
              AllOf(HasSubstr("digraph"), HasSubstr("aten::mm"), HasSubstr("aten::relu"), HasSubstr("->")));
  EXPECT_THAT(refusal<UsageError>("dump_dot into a folder that does not exist",
                                  [&] { graph.dump_dot("/nonexistent/graph.dot"); }),
              HasSubstr("/nonexistent/graph.dot"));
}

TEST_P(InfoTest, HandsOutRawHandlesOnCudaOnly) {
  const at::Tensor x = randn({4, 16});
  Graph graph(device());
  graph.capture([&] { x.mul_(2); });
  EXPECT_EQ(graph.raw_executable() != nullptr, on_cuda());
  EXPECT_EQ(graph.raw_graph() != nullptr, on_cuda());
}

class CaptureScopeTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(CaptureScopeTest);

TEST_P(CaptureScopeTest, CapturesTheCodeUntilEnd) {
  Training graphed(device());
  Training(device()).step();  // loads the device's libraries
  Graph graph(device());
  CaptureScope scope(graph);
  EXPECT_FALSE(graph.captured());
  graphed.step();
  scope.end();
  EXPECT_TRUE(graph.captured());
  testing::expect_replays_equal_eager(graph, graphed, 4);
}

TEST_P(CaptureScopeTest, AbandonsTheCaptureWithoutEnd) {
  Training training(device());
  const auto before = testing::clone_all(training.state());
  Graph graph(device());
  at::Tensor y;
  const at::Tensor x = randn({4, 16});
  {
    const CaptureScope scope(graph);
    training.step();
  }
  EXPECT_FALSE(graph.captured());
  testing::expect_same(training.state(), before, "after a scope that was left");
  CaptureScope scope(graph);
  y = x * 2;
  scope.end();
  x.add_(1);
  graph.replay();
  EXPECT_TRUE(same(y, x * 2));
}

TEST_P(CaptureScopeTest, RefusesWarmUpASecondEndAndAFullGraph) {
  Graph graph(device());
  const at::Tensor x = randn({4, 16});
  EXPECT_THAT(refusal<UsageError>("a CaptureScope with warm-up", [&] { CaptureScope scope(graph, {.warmup = 3}); }),
              AllOf(HasSubstr("warmup must be 0, got 3"), HasSubstr("Graph::capture")));
  CaptureScope scope(graph);
  x.mul_(2);
  scope.end();
  EXPECT_THAT(refusal<UsageError>("a second end() of a CaptureScope", [&] { scope.end(); }), HasSubstr("has ended"));
  EXPECT_THAT(refusal<UsageError>("a CaptureScope on a full graph", [&] { CaptureScope second(graph); }),
              HasSubstr("reset()"));
  const at::Tensor expected = x * 2;
  graph.replay();
  EXPECT_TRUE(same(x, expected)) << "what was captured is untouched";
}

}  // namespace
}  // namespace pianola::info_test
