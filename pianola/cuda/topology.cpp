#include <pianola/cuda/topology.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/node_reader.hpp>

#include <queue>

namespace pianola {
namespace {

std::vector<CUgraphNode> node_handles(CUgraph graph, const Driver& driver) {
  std::size_t count = 0;
  check(driver.graph_get_nodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> handles(count);
  if (count > 0) check(driver.graph_get_nodes(graph, handles.data(), &count), "cuGraphGetNodes");
  return handles;
}

struct RawEdges {
  std::vector<CUgraphNode> from;
  std::vector<CUgraphNode> to;
  std::vector<CUgraphEdgeData> data;
};

RawEdges raw_edges(CUgraph graph, const Driver& driver) {
  std::size_t count = 0;
  check(driver.graph_get_edges(graph, nullptr, nullptr, nullptr, &count), "cuGraphGetEdges");
  RawEdges edges{std::vector<CUgraphNode>(count), std::vector<CUgraphNode>(count), std::vector<CUgraphEdgeData>(count)};
  if (count == 0) return edges;
  check(driver.graph_get_edges(graph, edges.from.data(), edges.to.data(), edges.data.data(), &count),
        "cuGraphGetEdges");
  return edges;
}

}  // namespace

GraphTopology GraphTopology::read(CUgraph graph, const Driver& driver) {
  GraphTopology topology;
  NodeReader reader(driver);
  for (CUgraphNode handle : node_handles(graph, driver)) {
    topology.index_.emplace(handle, topology.nodes_.size());
    topology.nodes_.push_back(reader.read(handle));
  }
  const RawEdges edges = raw_edges(graph, driver);
  for (std::size_t i = 0; i < edges.from.size(); ++i) {
    const std::size_t from = topology.index_.at(edges.from[i]);
    const std::size_t to = topology.index_.at(edges.to[i]);
    topology.edges_.push_back({.from = from, .to = to, .data = edges.data[i]});
  }
  return topology;
}

std::optional<std::size_t> GraphTopology::index_of(CUgraphNode handle) const {
  const auto found = index_.find(handle);
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

std::map<std::string, std::size_t> GraphTopology::count_by_type() const {
  std::map<std::string, std::size_t> counts;
  for (const GraphNode& node : nodes_) {
    ++counts[std::string(to_string(node.type))];
    if (node.child() == nullptr) continue;
    for (const auto& [type, count] : node.child()->count_by_type()) counts[type] += count;
  }
  return counts;
}

std::vector<std::size_t> GraphTopology::topological_order() const {
  std::vector<std::size_t> open(nodes_.size());  // Dependencies that are not in the order yet.
  std::vector<std::vector<std::size_t>> dependents(nodes_.size());
  for (const GraphEdge& edge : edges_) {
    ++open[edge.to];
    dependents[edge.from].push_back(edge.to);
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (open[i] == 0) free.push(i);
  }
  std::vector<std::size_t> order;
  order.reserve(nodes_.size());
  while (!free.empty()) {
    order.push_back(free.top());
    free.pop();
    for (std::size_t dependent : dependents[order.back()]) {
      if (--open[dependent] == 0) free.push(dependent);
    }
  }
  if (order.size() != nodes_.size()) {
    throw UsageError({.what = "the graph has a cycle: " + std::to_string(nodes_.size() - order.size()) + " of its " +
                              std::to_string(nodes_.size()) + " nodes wait for themselves"});
  }
  return order;
}

}  // namespace pianola
