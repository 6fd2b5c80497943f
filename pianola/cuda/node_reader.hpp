#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/graph_node.hpp>

#include <memory>
#include <string>
#include <unordered_map>

namespace pianola {

/// Reads nodes of CUDA graphs. Keeps the kernels it met, since a graph launches few of them very often.
class NodeReader {
 public:
  explicit NodeReader(const Driver& driver) : driver_(driver) {}

  /// @throws DeviceError  The node's type cannot be read; what else cannot be read is left empty.
  [[nodiscard]] GraphNode read(CUgraphNode node);

 private:
  using Function = std::shared_ptr<const KernelFunction>;

  void read_kernel(GraphNode& node);
  void read_memcpy(GraphNode& node) const;
  void read_memset(GraphNode& node) const;
  void read_memory(GraphNode& node) const;
  void read_child(GraphNode& node);
  const Function& function_of(const CUDA_KERNEL_NODE_PARAMS_v2& params);

  const Driver& driver_;
  std::unordered_map<const void*, Function> functions_;  // By CUfunction or CUkernel.
};

/// A node in a few words, for messages. Never throws on account of CUDA: says "a node" where it cannot be read.
[[nodiscard]] std::string describe_node(CUgraphNode node, const Driver& driver);

}  // namespace pianola
