#pragma once
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/node_change.hpp>
#include <pianola/cuda/node_reader.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace pianola {

/// Captures of a fake driver's kernels that are given one struct, for tests of what their nodes are given later.
template <typename Arguments>
class FakeKernels {
 public:
  CUgraphNode launch(FakeDriver::Function& function, const Arguments& arguments, unsigned blocks = 1) {
    FakeDriver::Node node;
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.kernel.func = FakeDriver::as_function(function);
    node.kernel.gridDimX = blocks;
    node.kernel.gridDimY = node.kernel.gridDimZ = 1;
    arguments_.push_back(arguments);
    pointers_.push_back({&arguments_.back()});
    node.kernel.kernelParams = pointers_.back().data();
    return graph.add(std::move(node));
  }
  /// What makes the first node do as the second.
  std::vector<NodeChange> between(CUgraphNode captured, CUgraphNode anew,
                                  OtherFunctions others = OtherFunctions::refused) {
    auto change = NodeChange::between(reader.read(captured), anew, reader, {}, fake.table(), others);
    EXPECT_TRUE(change.has_value());
    std::vector<NodeChange> changes;
    changes.push_back(*std::move(change));
    return changes;
  }
  /// What the node is given by the change.
  Arguments given(NodeChange& change, CUgraphNode captured) {
    change.apply(nullptr, captured, fake.table());
    Arguments given;
    std::memcpy(&given, fake.kernels_set.back().arguments[0].data(), sizeof given);
    return given;
  }

  FakeDriver fake;
  FakeDriver::Graph graph;
  NodeReader reader{fake.table()};

 private:
  std::deque<Arguments> arguments_;
  std::deque<std::vector<void*>> pointers_;
};

}  // namespace pianola
