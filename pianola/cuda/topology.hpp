#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/graph_node.hpp>

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace pianola {

/// A dependency: node `to` runs behind node `from`. Nodes are given as positions in GraphTopology::nodes().
struct GraphEdge {
  std::size_t from;
  std::size_t to;
  CUgraphEdgeData data = {};  ///< As the driver gave it: what removing the edge has to repeat.

  /// Whether `to` may begin before `from` is complete (programmatic dependent launch).
  [[nodiscard]] bool is_programmatic() const noexcept { return data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC; }
};

/// What a CUDA graph consists of, read once: it does not follow later changes of the graph, and its contents stay
/// valid when the graph is destroyed (the node handles then do not).
///
/// Child graphs are read too, each as a topology of its own behind its node. The bodies of conditional nodes are not:
/// CUDA 13.0 has no way to ask for them.
///
/// Threads:  Immutable; reading is one call at a time per CUgraph.
class GraphTopology {
 public:
  /// @throws DeviceError  CUDA does not tell nodes or edges.
  [[nodiscard]] static GraphTopology read(CUgraph graph, const Driver& driver = Driver::get());

  [[nodiscard]] const std::vector<GraphNode>& nodes() const noexcept { return nodes_; }
  [[nodiscard]] const std::vector<GraphEdge>& edges() const noexcept { return edges_; }
  /// The position of a node in nodes(); nothing if it is not a node of this graph. Does not look into child graphs.
  [[nodiscard]] std::optional<std::size_t> index_of(CUgraphNode handle) const;

  /// Nodes by the name of their type. Nodes of child graphs count, and so do the nodes that hold those graphs.
  [[nodiscard]] std::map<std::string, std::size_t> count_by_type() const;
  /// Positions of the nodes, each behind those that it depends on; among the free ones the lower position goes first.
  /// @throws UsageError  The graph has a cycle, as one built by hand may have.
  [[nodiscard]] std::vector<std::size_t> topological_order() const;

  /// Writes the graph in the language of Graphviz; child graphs as boxes, programmatic edges dashed. `extra`, if there
  /// is one, gives for a position in nodes() further lines of its label; it is not asked about child graphs' nodes.
  using ExtraLabel = std::function<std::string(std::size_t node)>;
  void to_dot(std::ostream& out, const ExtraLabel& extra = {}) const;

 private:
  std::vector<GraphNode> nodes_;
  std::vector<GraphEdge> edges_;
  std::unordered_map<CUgraphNode, std::size_t> index_;
};

}  // namespace pianola
