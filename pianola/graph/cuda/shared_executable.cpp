#include <pianola/graph/cuda/shared_executable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/topology.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

std::vector<CUgraphNode> nodes_of(CUgraph graph) {
  const Driver& driver = Driver::get();
  std::size_t count = 0;
  check(driver.graph_get_nodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) check(driver.graph_get_nodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  return nodes;
}

}  // namespace

GraphShape GraphShape::read(CUgraph graph) {
  const GraphTopology topology = GraphTopology::read(graph);
  GraphShape shape{.nodes = topology.nodes().size(), .programmatic = {}};
  for (const GraphEdge& edge : topology.edges()) {
    if (!edge.is_programmatic()) continue;
    shape.programmatic.push_back({edge.from, edge.to, edge.data.from_port, edge.data.to_port});
  }
  std::sort(shape.programmatic.begin(), shape.programmatic.end());
  return shape;
}

SharedExecutable::SharedExecutable(Executable made, Source source, GraphShape shape)
    : executable_(std::move(made)),
      has_parameters_of_(source.graph),
      source_(std::move(source)),
      shape_(std::move(shape)),
      graphs_{source_.graph} {}

std::optional<UpdateRefusal> SharedExecutable::give(const void* graph, CUgraph nodes, const PoolTurn& /*turn*/) {
  has_parameters_of_ = nullptr;
  std::optional<UpdateRefusal> refusal = executable_.update(nodes);
  if (!refusal) has_parameters_of_ = graph;
  return refusal;
}

void SharedExecutable::remove(const void* graph, const PoolTurn& /*turn*/) noexcept {
  std::erase(graphs_, graph);
  if (is_of(graph)) has_parameters_of_ = nullptr;  // its memory may go, and another graph may have its address
}

void SharedExecutable::drop(const PoolTurn& /*turn*/) noexcept {
  executable_ = {};
  has_parameters_of_ = nullptr;
  source_.memory = {};
}

void SharedExecutable::make_again(Executable made, Source source, const PoolTurn& /*turn*/) {
  shape_ = GraphShape::read(source.nodes);
  const auto maker = std::find(graphs_.begin(), graphs_.end(), source.graph);
  std::rotate(graphs_.begin(), maker, maker == graphs_.end() ? maker : maker + 1);
  executable_ = std::move(made);
  has_parameters_of_ = source.graph;
  source_ = std::move(source);
  kept_.reset();
}

// As many copies of inputs: replays switch them off, and CUDA must not pair one with a copy of the step's. An executable that fails for
// another reason than the graph has no room, say: what is made in its place tells.
std::shared_ptr<SharedExecutable> SharedExecutables::give_one(const void* graph, CUgraph nodes, const GraphShape& shape,
                                                              std::size_t copies, const PoolTurn& turn) {
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  for (const auto& known : all_) {
    std::shared_ptr<SharedExecutable> one = known.lock();
    if (one == nullptr || !one->may_take(shape, copies)) continue;
    try {
      if (one->give(graph, nodes, turn)) continue;
    } catch (const DeviceError&) {
      continue;
    }
    one->add(graph, turn);
    return one;
  }
  return nullptr;
}

void SharedExecutables::add(const std::shared_ptr<SharedExecutable>& one, const PoolTurn& /*turn*/) {
  all_.push_back(one);
}

bool may_share_executables(CUgraph nodes) {
  return std::ranges::all_of(nodes_of(nodes), [](CUgraphNode node) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    check(Driver::get().graph_node_get_type(node, &type), "cuGraphNodeGetType");
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_EMPTY;
  });
}

}  // namespace pianola::graph
