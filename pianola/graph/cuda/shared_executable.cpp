#include <pianola/graph/cuda/shared_executable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

std::size_t count_nodes(CUgraph graph) {
  std::size_t nodes = 0;
  check(Driver::get().graph_get_nodes(graph, nullptr, &nodes), "cuGraphGetNodes");
  return nodes;
}

}  // namespace

SharedExecutable::SharedExecutable(Executable made, Source source)
    : executable_(std::move(made)),
      has_parameters_of_(source.graph),
      source_(std::move(source)),
      nodes_(count_nodes(source_.nodes)),
      graphs_{source_.graph} {}

// Replays switch the copies of inputs off: CUDA must not pair one with a copy of the step's.
bool SharedExecutable::may_take(CUgraph nodes, std::size_t copies) const {
  return executable_.get() != nullptr && copies == source_.copies.size() && count_nodes(nodes) == nodes_;
}

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

void SharedExecutable::drop() noexcept {
  executable_ = {};
  has_parameters_of_ = nullptr;
  source_.memory = {};
}

void SharedExecutable::make_again(Executable made, Source source) {
  nodes_ = count_nodes(source.nodes);
  const auto maker = std::find(graphs_.begin(), graphs_.end(), source.graph);
  std::rotate(graphs_.begin(), maker, maker == graphs_.end() ? maker : maker + 1);
  executable_ = std::move(made);
  has_parameters_of_ = source.graph;
  source_ = std::move(source);
  kept_.reset();
}

// One that fails for another reason than the graph has no room, say: what is made in its place tells.
std::shared_ptr<SharedExecutable> SharedExecutables::give_one(const void* graph, CUgraph nodes, std::size_t copies,
                                                              const PoolTurn& turn) {
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  for (const auto& known : all_) {
    std::shared_ptr<SharedExecutable> one = known.lock();
    if (one == nullptr || !one->may_take(nodes, copies)) continue;
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
  const Driver& driver = Driver::get();
  std::size_t count = count_nodes(nodes);
  std::vector<CUgraphNode> all(count);
  check(driver.graph_get_nodes(nodes, all.data(), &count), "cuGraphGetNodes");
  return std::all_of(all.begin(), all.end(), [&](CUgraphNode node) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    check(driver.graph_node_get_type(node, &type), "cuGraphNodeGetType");
    return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
           type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_EMPTY;
  });
}

}  // namespace pianola::graph
