#include <pianola/parallel/graph_chain.hpp>

#include <pianola/parallel/testing/graph_units_test.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pianola::parallel::graph_chain_test {
namespace {

using ::testing::HasSubstr;
using Call = testing::FakeStep::Call;

class GraphRefusal : public testing::GraphUnitsTest {};

TEST_F(GraphRefusal, IsMadeWhereTheStepForks) {
  EXPECT_EQ(
      refusal([&] {
        at::relu(x);
        at::mm(x, x);
        at::relu(x);
        step.graph.nodes[2].dependencies = {{.from = reinterpret_cast<CUgraphNode>(&step.graph.nodes[0])}};
      }),
      "it was captured on several streams: kernel a_kernel of aten::mm and kernel a_kernel of aten::relu do not wait "
      "for each other, and only a chain is taken apart");
}

TEST_F(GraphRefusal, IsNotMadeWhereAnEdgeIsProgrammatic) {
  const auto all = units([&] {
    at::relu(x);
    at::mm(x, x);
    step.graph.nodes[1].dependencies[0].data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  });
  EXPECT_THAT(all, ::testing::SizeIs(2));
}

TEST_F(GraphRefusal, IsMadeWhereANodeCannotBeMoved) {
  FakeDriver::Graph inner;
  inner.add_empty();
  const std::vector<std::pair<CUgraphNodeType, std::string>> refused = {
      {CU_GRAPH_NODE_TYPE_HOST, "host of aten::mm calls a function on the host, and so keeps its place"},
      {CU_GRAPH_NODE_TYPE_GRAPH, "child_graph of 1 nodes of aten::mm is a graph of its own, and so keeps its place"},
      {CU_GRAPH_NODE_TYPE_CONDITIONAL, "conditional of aten::mm runs a graph that cannot be read"},
      {CU_GRAPH_NODE_TYPE_MEM_ALLOC, "aten::mm allocates or frees memory while the graph runs"},
      {CU_GRAPH_NODE_TYPE_MEM_FREE, "mem_free of aten::mm allocates or frees memory while the graph runs"},
      {CU_GRAPH_NODE_TYPE_WAIT_EVENT, "event_wait of aten::mm is in step with work outside the graph"},
      {CU_GRAPH_NODE_TYPE_EVENT_RECORD, "event_record of aten::mm is in step with work outside the graph"},
      {CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, "semaphore_signal of aten::mm is in step with work outside the graph"},
      {CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, "semaphore_wait of aten::mm is in step with work outside the graph"},
      {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "batch_mem_op of aten::mm is in step with work outside the graph"},
      {static_cast<CUgraphNodeType>(99), "unknown of aten::mm is of a type newer than Pianola"},
  };
  for (const auto& [type, message] : refused) {
    step.graph.nodes.clear();
    EXPECT_THAT(refusal_of_mm([&](const Call&) { step.add({.type = type, .child = &inner}); }), HasSubstr(message));
  }
}

TEST_F(GraphRefusal, IsMadeWhereAKernelCommunicates) {
  for (const char* symbol : {"_Z31ncclDevKernel_AllReduce_Sum_f32v", "nvshmemi_barrier_kernel"}) {
    step.graph.nodes.clear();
    EXPECT_THAT(refusal_of_mm([&](const Call&) { step.kernel({}, symbol); }),
                HasSubstr("of aten::mm communicates with other GPUs, which have to do so in the same order"));
  }
}

TEST_F(GraphRefusal, IsMadeWhereAnOperatorIsACollective) {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::FRAGMENT, "symm_mem", std::nullopt, __FILE__, __LINE__);
    made.def("pianola_reduce(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                                                   [](const at::Tensor& t) { return t.clone(); }));
    return made;
  }();
  EXPECT_EQ(refusal([&] {
              c10::Stack stack{x};
              c10::Dispatcher::singleton().findSchemaOrThrow("symm_mem::pianola_reduce", "").callBoxed(stack);
            }),
            "symm_mem::pianola_reduce communicates with other processes, which have to do so in the same order");
}

}  // namespace
}  // namespace pianola::parallel::graph_chain_test
