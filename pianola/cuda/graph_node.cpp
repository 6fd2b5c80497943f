#include <pianola/cuda/graph_node.hpp>

#include <pianola/cuda/topology.hpp>

#include <fmt/format.h>

#include <array>

namespace pianola {
namespace {

struct TypeName {
  CUgraphNodeType cuda;
  NodeType type;
  std::string_view name;
};

constexpr std::array kTypes = {
    TypeName{CU_GRAPH_NODE_TYPE_KERNEL, NodeType::kernel, "kernel"},
    TypeName{CU_GRAPH_NODE_TYPE_MEMCPY, NodeType::memcpy, "memcpy"},
    TypeName{CU_GRAPH_NODE_TYPE_MEMSET, NodeType::memset, "memset"},
    TypeName{CU_GRAPH_NODE_TYPE_HOST, NodeType::host, "host"},
    TypeName{CU_GRAPH_NODE_TYPE_GRAPH, NodeType::child_graph, "child_graph"},
    TypeName{CU_GRAPH_NODE_TYPE_EMPTY, NodeType::empty, "empty"},
    TypeName{CU_GRAPH_NODE_TYPE_WAIT_EVENT, NodeType::event_wait, "event_wait"},
    TypeName{CU_GRAPH_NODE_TYPE_EVENT_RECORD, NodeType::event_record, "event_record"},
    TypeName{CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, NodeType::semaphore_signal, "semaphore_signal"},
    TypeName{CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, NodeType::semaphore_wait, "semaphore_wait"},
    TypeName{CU_GRAPH_NODE_TYPE_MEM_ALLOC, NodeType::mem_alloc, "mem_alloc"},
    TypeName{CU_GRAPH_NODE_TYPE_MEM_FREE, NodeType::mem_free, "mem_free"},
    TypeName{CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, NodeType::batch_mem_op, "batch_mem_op"},
    TypeName{CU_GRAPH_NODE_TYPE_CONDITIONAL, NodeType::conditional, "conditional"},
};

}  // namespace

NodeType node_type(CUgraphNodeType type) noexcept {
  for (const TypeName& entry : kTypes) {
    if (entry.cuda == type) return entry.type;
  }
  return NodeType::unknown;
}

std::string_view to_string(NodeType type) noexcept {
  for (const TypeName& entry : kTypes) {
    if (entry.type == type) return entry.name;
  }
  return "unknown";
}

std::span<const std::byte> KernelNode::argument(std::size_t index) const {
  if (arguments.empty()) return {};
  const KernelParameter& parameter = function->parameters.at(index);
  return std::span(arguments).subspan(parameter.offset, parameter.size);
}

const GraphTopology* GraphNode::child() const noexcept {
  const auto* node = std::get_if<ChildGraphNode>(&details);
  return node == nullptr ? nullptr : node->graph.get();
}

std::string to_string(const GraphNode& node) {
  const std::string_view type = to_string(node.type);
  if (const KernelNode* kernel = node.kernel()) return fmt::format("{} {}", type, kernel->function->short_name);
  if (const MemcpyNode* copy = node.memcpy()) return fmt::format("{} of {} bytes", type, copy->bytes);
  if (const MemsetNode* fill = node.memset()) return fmt::format("{} of {} bytes", type, fill->bytes);
  if (const MemoryNode* memory = node.memory(); memory != nullptr && node.type == NodeType::mem_alloc) {
    return fmt::format("{} of {} bytes", type, memory->bytes);
  }
  if (const GraphTopology* child = node.child()) return fmt::format("{} of {} nodes", type, child->nodes().size());
  return std::string(type);
}

}  // namespace pianola
