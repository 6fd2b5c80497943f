#pragma once
#include <cuda.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pianola {

class GraphTopology;

/// What a node of a CUDA graph does (CUgraphNodeType).
enum class NodeType {
  kernel,
  memcpy,
  memset,
  host,
  child_graph,
  empty,
  event_wait,
  event_record,
  semaphore_signal,
  semaphore_wait,
  mem_alloc,
  mem_free,
  batch_mem_op,
  conditional,
  unknown,  ///< A type that is newer than this code.
};

[[nodiscard]] NodeType node_type(CUgraphNodeType type) noexcept;
/// "kernel", "memcpy", "child_graph" ...: the enumerator's name.
[[nodiscard]] std::string_view to_string(NodeType type) noexcept;

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

/// Where a parameter stands in the kernel's block of arguments.
struct KernelParameter {
  std::size_t offset;
  std::size_t size;  ///< In bytes.
};

/// A kernel as a function: shared by the nodes that launch it.
struct KernelFunction {
  std::string symbol;                       ///< As the driver has it, mangled; empty where the driver does not tell.
  std::string name;                         ///< Demangled.
  std::string short_name;                   ///< See short_kernel_name().
  std::vector<KernelParameter> parameters;  ///< In order; empty where the driver does not tell.
};

/// A launch of a kernel.
struct KernelNode {
  std::shared_ptr<const KernelFunction> function;
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes = 0;  ///< Dynamic shared memory of a block.
  /// The block of arguments as the kernel sees it, zero between parameters. Empty where the driver does not tell.
  /// Slots of a struct that the caller never filled hold what was on its stack.
  std::vector<std::byte> arguments;

  /// The bytes of a parameter. Empty where `arguments` is.
  [[nodiscard]] std::span<const std::byte> argument(std::size_t index) const;
};

/// A copy. Addresses are those of the first byte, 0 for arrays.
struct MemcpyNode {
  CUdeviceptr source = 0;
  CUdeviceptr destination = 0;
  CUmemorytype source_type = CU_MEMORYTYPE_DEVICE;
  CUmemorytype destination_type = CU_MEMORYTYPE_DEVICE;
  std::size_t bytes = 0;  ///< Copied in total.
  std::size_t rows = 1;   ///< In so many pieces; 1: the bytes are contiguous on both sides.
};

/// A fill.
struct MemsetNode {
  CUdeviceptr destination = 0;
  unsigned value = 0;
  unsigned element_bytes = 1;  ///< 1, 2 or 4.
  std::size_t bytes = 0;       ///< Written in total.
  std::size_t rows = 1;        ///< In so many pieces; 1: they are contiguous.
};

/// An allocation made by the graph (mem_alloc) or freed by it (mem_free, which knows no size).
struct MemoryNode {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};

/// A graph inside the graph.
struct ChildGraphNode {
  std::shared_ptr<const GraphTopology> graph;
};

/// A node of a graph. `details` is empty for types that have none here, and where the driver refused to tell: whoever
/// needs them must then expect anything of the node.
struct GraphNode {
  CUgraphNode handle = nullptr;
  NodeType type = NodeType::unknown;
  std::variant<std::monostate, KernelNode, MemcpyNode, MemsetNode, MemoryNode, ChildGraphNode> details = {};

  [[nodiscard]] const KernelNode* kernel() const noexcept { return std::get_if<KernelNode>(&details); }
  [[nodiscard]] const MemcpyNode* memcpy() const noexcept { return std::get_if<MemcpyNode>(&details); }
  [[nodiscard]] const MemsetNode* memset() const noexcept { return std::get_if<MemsetNode>(&details); }
  [[nodiscard]] const MemoryNode* memory() const noexcept { return std::get_if<MemoryNode>(&details); }
  [[nodiscard]] const GraphTopology* child() const noexcept;
};

/// A node in a few words: "kernel at::native::fill_kernel", "memcpy of 4096 bytes".
[[nodiscard]] std::string to_string(const GraphNode& node);

}  // namespace pianola
