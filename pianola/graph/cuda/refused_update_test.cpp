#include <pianola/graph/cuda/refused_update.hpp>

#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph::refused_update_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A view, a product and what follows, as a capture records them where each operation makes so many nodes.
class FakeCapture {
 public:
  explicit FakeCapture(std::map<std::string, std::size_t> nodes_of) : nodes_of_(std::move(nodes_of)) {
    Adder adder(*this);
    TraceRecorder recorder({.new_nodes = [this]() -> std::span<const void* const> {
      given_ = std::exchange(pending_, {});
      return given_;
    }});
    const at::Tensor x = at::ones({2, 2});
    {
      const trace::OpStream stream({&recorder, &adder});
      at::relu(at::mm(x.t(), x));
    }
    trace = recorder.take();
  }

  [[nodiscard]] CUgraphNode node(std::size_t number) {
    return static_cast<CUgraphNode>(static_cast<void*>(&handles_[number]));
  }

  OpTrace trace;

 private:
  struct Adder : trace::OpObserver {
    explicit Adder(FakeCapture& fake) : capture(fake) {}
    void on_op_begin(const trace::OpSpan& op) override {
      for (std::size_t i = 0; i < capture.nodes_of_[op.info->name]; ++i) {
        capture.pending_.push_back(capture.node(capture.made_++));
      }
    }
    FakeCapture& capture;
  };

  std::map<std::string, std::size_t> nodes_of_;
  std::array<int, 8> handles_{};  // their addresses serve as nodes
  std::size_t made_ = 0;
  std::vector<const void*> pending_, given_;
};

UpdateRefusal other_type_of(CUgraphNode node) {
  return {.result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
          .reason = "a node is of another type",
          .node = node,
          .node_text = node == nullptr ? "" : "memset of 4 bytes"};
}

TEST(RefusedUpdateTest, NamesTheOperationOfTheNode) {
  const FakeCapture captured({{"aten::mm", 1}, {"aten::relu", 1}});
  FakeCapture now({{"aten::mm", 1}, {"aten::relu", 1}});
  const Diagnosis diagnosis = explain_refused_update(other_type_of(now.node(1)), captured.trace, now.trace);
  EXPECT_THAT(diagnosis.what, HasSubstr("what aten::relu makes now: a node is of another type"));
  EXPECT_THAT(diagnosis.what, HasSubstr("the earlier capture stays"));
  EXPECT_THAT(diagnosis.where, HasSubstr("operation 3 of the step"));
  EXPECT_THAT(diagnosis.where, HasSubstr(": memset of 4 bytes"));
  EXPECT_THAT(diagnosis.fix, HasSubstr("reset() and capture()"));
}

TEST(RefusedUpdateTest, NamesTheFirstOperationThatMadeMoreNodesWhateverNodeCudaNames) {
  const FakeCapture captured({{"aten::mm", 1}, {"aten::relu", 1}});
  FakeCapture now({{"aten::mm", 2}, {"aten::relu", 1}});
  for (CUgraphNode node : {CUgraphNode{nullptr}, now.node(2)}) {
    const Diagnosis diagnosis = explain_refused_update(other_type_of(node), captured.trace, now.trace);
    EXPECT_THAT(diagnosis.what, HasSubstr("what aten::mm makes now"));
    EXPECT_THAT(diagnosis.where, HasSubstr("operation 2 of the step"));
    EXPECT_THAT(diagnosis.where, HasSubstr(": 2 nodes, and 1 in the earlier capture"));
  }
}

TEST(RefusedUpdateTest, SaysWhereNoOperationMadeTheNode) {
  const FakeCapture captured({{"aten::mm", 1}});
  FakeCapture now({{"aten::mm", 1}});
  const Diagnosis foreign = explain_refused_update(other_type_of(now.node(5)), captured.trace, now.trace);
  EXPECT_THAT(foreign.what, HasSubstr("what the step makes now"));
  EXPECT_THAT(foreign.where, HasSubstr("memset of 4 bytes, which no operation of the step launched"));
  const Diagnosis unknown = explain_refused_update(other_type_of(nullptr), captured.trace, now.trace);
  EXPECT_THAT(unknown.where, IsEmpty());
  EXPECT_THAT(unknown.fix, Not(IsEmpty()));
}

TEST(RefusedUpdateTest, SaysThatAnotherNumberOfInputsIsCopied) {
  EXPECT_FALSE(explain_other_copies(2, 2));
  const auto diagnosis = explain_other_copies(2, 1);
  ASSERT_TRUE(diagnosis);
  EXPECT_THAT(diagnosis->what, HasSubstr("inputs of which the graph copies 1, and 2 in the earlier capture"));
  EXPECT_THAT(diagnosis->what, HasSubstr("the earlier capture stays"));
  EXPECT_THAT(diagnosis->fix, HasSubstr("reset() and capture()"));
}

}  // namespace
}  // namespace pianola::graph::refused_update_test
