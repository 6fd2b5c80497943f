#include <pianola/graph/cuda/segments.hpp>

#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/graph/cuda/executable_account.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace pianola::graph {
namespace {

// Where a node lies: of the operation k at 2k, of none, but behind it, at 2k + 1.
constexpr std::size_t kBefore = 0;
constexpr std::size_t kBehind = std::numeric_limits<std::size_t>::max();

// Reads or writes tensors, for all that is known of it: what is in a graph inside of the graph, nobody looks at.
bool may_use_memory(NodeType type) {
  switch (type) {
    case NodeType::empty:
    case NodeType::event_wait:
    case NodeType::event_record:
    case NodeType::semaphore_signal:
    case NodeType::semaphore_wait:
    case NodeType::mem_alloc:
    case NodeType::mem_free:
      return false;
    default:
      return true;
  }
}

}  // namespace

Segments::Segments(CUgraph graph, const OpTrace& trace, std::span<const CUgraphNode> before,
                   std::span<const CUgraphNode> behind, std::function<void(ExecutableMemory)> made)
    : graph_(graph), made_(std::move(made)) {
  for (std::size_t i = 0; i < trace.ops().size(); ++i) {
    for (const void* node : trace.nodes(trace.ops()[i])) {
      known_.emplace_back(static_cast<CUgraphNode>(const_cast<void*>(node)), 2 * (i + 1));
    }
  }
  for (CUgraphNode node : before) known_.emplace_back(node, kBefore);
  for (CUgraphNode node : behind) known_.emplace_back(node, kBehind);
}

// A node that is no operation's (of a kernel that was launched by itself) goes behind the last one that it depends on, also
// where that is run by hand.
void Segments::read() {
  const GraphTopology topology = GraphTopology::read(graph_);
  std::vector<std::optional<std::size_t>> known(topology.nodes().size());
  for (const auto& [node, operation] : known_) {
    if (const auto position = topology.index_of(node)) known[*position] = operation;
  }
  std::vector<std::vector<std::size_t>> sources(known.size());
  for (const GraphEdge& edge : topology.edges()) sources[edge.to].push_back(edge.from);
  places_.assign(known.size(), 1);
  for (const std::size_t i : topology.topological_order()) {
    for (const std::size_t source : sources[i]) places_[i] = std::max(places_[i], places_[source] | 1);
    if (known[i]) places_[i] = *known[i];
  }
  for (std::size_t i = 0; i < known.size(); ++i) {
    const GraphNode& node = topology.nodes()[i];
    any_of_none_ = any_of_none_ || (!known[i] && may_use_memory(node.type));
    nodes_.push_back(node.handle);
  }
}

bool Segments::any_of_no_operation() {
  if (places_.empty()) read();
  return any_of_none_;
}

Segments::Segment::~Segment() {
  if (graph != nullptr) Driver::get().graph_destroy(graph);
}

Segments::Segment& Segments::get(std::size_t first, std::size_t last) {
  const auto known = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return segment.first == first && segment.last == last;
  });
  if (known != segments_.end()) return *known;
  if (places_.empty()) read();
  Segment& segment = segments_.emplace_back();
  try {
    segment.first = first;
    segment.last = last;
    make(segment);
  } catch (...) {
    segments_.pop_back();
    throw;
  }
  return segment;
}

void Segments::make(Segment& segment) const {
  const Driver& driver = Driver::get();
  const auto is_in = [&](std::size_t i) {
    return 2 * segment.first - 1 <= places_[i] && (segment.last == kEnd || places_[i] <= 2 * segment.last);
  };
  bool any = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) any = any || is_in(i);
  if (!any) return;
  check(driver.graph_clone(&segment.graph, graph_), "cuGraphClone");
  std::vector<CUgraphNode> others;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    CUgraphNode copy = nullptr;
    check(driver.graph_node_find_in_clone(&copy, nodes_[i], segment.graph), "cuGraphNodeFindInClone");
    if (is_in(i)) {
      segment.nodes.emplace(nodes_[i], copy);
    } else {
      others.push_back(copy);
    }
  }
  for (CUgraphNode node : others) check(driver.graph_destroy_node(node), "cuGraphDestroyNode");
  made_(instantiate(segment));
}

ExecutableMemory Segments::instantiate(Segment& segment) {
  const ExecutableAccount account;
  segment.executable = Executable::instantiate(segment.graph, {.use_node_priority = true});
  segment.given_at = 0;
  return account.taken();
}

void Segments::drop_executables() noexcept {
  for (Segment& segment : segments_) segment.executable = {};
}

ExecutableMemory Segments::make_executables() {
  ExecutableMemory all;
  for (Segment& segment : segments_) {
    if (segment.graph == nullptr) continue;
    const ExecutableMemory one = instantiate(segment);
    all.device += one.device;
    all.host += one.host;
  }
  return all;
}

}  // namespace pianola::graph
