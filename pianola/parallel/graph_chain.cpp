#include <pianola/parallel/graph_chain.hpp>

#include <pianola/cuda/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

namespace pianola::parallel {
namespace {

using NameOf = std::function<std::string(std::size_t)>;
using IsCollective = std::function<bool(std::size_t)>;

// Why nodes of a type cannot be reordered; empty: they can.
std::string_view why_fixed(NodeType type) {
  switch (type) {
    case NodeType::kernel:
    case NodeType::memcpy:
    case NodeType::memset:
    case NodeType::empty:
      return "";
    case NodeType::host:
      return "calls a function on the host";
    case NodeType::child_graph:
      return "is a graph of its own";
    case NodeType::event_wait:
    case NodeType::event_record:
    case NodeType::semaphore_signal:
    case NodeType::semaphore_wait:
    case NodeType::batch_mem_op:
      return "is in step with work outside the graph";
    case NodeType::mem_alloc:
    case NodeType::mem_free:
      return "allocates or frees memory while the graph runs";
    case NodeType::conditional:
      return "runs a graph that cannot be read";
    case NodeType::unknown:
      return "is of a type newer than Pianola";
  }
  return "is of a type newer than Pianola";
}

bool communicates(const GraphNode& node) {
  if (node.kernel() == nullptr) return false;
  const std::string_view name = node.kernel()->function->name;
  return name.find("nccl") != std::string_view::npos || name.find("nvshmem") != std::string_view::npos;
}

// NCCL keeps collectives of one communicator in order by events, those outside of the graph too.
bool is_of_nccl(const GraphNode& node) {
  return node.type == NodeType::event_wait || node.type == NodeType::event_record || communicates(node);
}

std::string refuse_nodes(const GraphTopology& graph, const NameOf& name_of, const IsCollective& is_collective) {
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    if (is_of_nccl(node) && is_collective(i)) continue;
    if (const std::string_view why = why_fixed(node.type); !why.empty()) {
      return fmt::format("{} {}, and so keeps its place", name_of(i), why);
    }
    if (communicates(node)) {
      return fmt::format("{} communicates with other GPUs, which have to do so in the same order", name_of(i));
    }
  }
  return "";
}

// Finds whether a node runs behind another, directly or by way of collectives alone.
class Ways {
 public:
  Ways(const GraphTopology& graph, const IsCollective& is_collective)
      : is_collective_(is_collective), parents_(graph.nodes().size()), asked_(graph.nodes().size()) {
    for (const GraphEdge& edge : graph.edges()) parents_[edge.to].push_back(edge.from);
  }

  bool lead(std::size_t from, std::size_t to) {
    ++question_;
    std::vector<std::size_t> open = {to};
    while (!open.empty()) {
      const std::size_t node = open.back();
      open.pop_back();
      for (const std::size_t parent : parents_[node]) {
        if (parent == from) return true;
        if (!is_collective_(parent) || asked_[parent] == question_) continue;
        asked_[parent] = question_;
        open.push_back(parent);
      }
    }
    return false;
  }

 private:
  const IsCollective& is_collective_;
  std::vector<std::vector<std::size_t>> parents_;
  std::vector<std::size_t> asked_;  // by node, the last question that came by
  std::size_t question_ = 0;
};

}  // namespace

// Note [Programmatic edges]
// A kernel that was launched with programmatic dependent launch may begin before the one before it is complete; it waits
// inside for what it needs. Where such a graph is rebuilt, the edge becomes an ordinary one, or none where the two have
// nothing to do with each other: a kernel that waits inside then finds nothing to wait for.
Chain chain_of(const GraphTopology& graph, const NameOf& name_of, const IsCollective& is_collective) {
  Chain chain;
  chain.refusal = refuse_nodes(graph, name_of, is_collective);
  if (!chain.refusal.empty()) return chain;

  const std::vector<std::size_t> order = graph.topological_order();
  chain.order.assign(order.begin(), order.end());
  Ways ways(graph, is_collective);
  std::optional<std::size_t> before;
  for (const std::size_t node : order) {
    if (is_collective(node)) continue;
    if (before && !ways.lead(*before, node)) {
      chain.refusal = fmt::format(
          "it was captured on several streams: {} and {} do not wait for each other, and only a chain is taken apart",
          name_of(*before), name_of(node));
      break;
    }
    before = node;
  }
  return chain;
}

}  // namespace pianola::parallel
