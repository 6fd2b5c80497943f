#include <pianola/cuda/topology.hpp>

#include <fmt/format.h>

#include <ostream>
#include <string>

namespace pianola {
namespace {

// Text inside a quoted string of Graphviz, where "\n" breaks the line.
std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string dimensions(const Dim3& d) { return fmt::format("{}x{}x{}", d.x, d.y, d.z); }

std::string label_of(const GraphNode& node, std::size_t index, const GraphTopology::ExtraLabel& extra) {
  std::string label = fmt::format("{}: {}", index, to_string(node));
  if (const KernelNode* kernel = node.kernel()) {
    label += fmt::format("\ngrid {}, block {}", dimensions(kernel->grid), dimensions(kernel->block));
  }
  const std::string more = extra ? extra(index) : std::string();
  return more.empty() ? label : label + "\n" + more;
}

const char* shape_of(NodeType type) {
  switch (type) {
    case NodeType::kernel:
      return "box";
    case NodeType::memcpy:
    case NodeType::memset:
      return "cds";
    case NodeType::mem_alloc:
    case NodeType::mem_free:
      return "folder";
    case NodeType::host:
    case NodeType::child_graph:
    case NodeType::empty:
    case NodeType::event_wait:
    case NodeType::event_record:
    case NodeType::semaphore_signal:
    case NodeType::semaphore_wait:
    case NodeType::batch_mem_op:
    case NodeType::conditional:
    case NodeType::unknown:
      return "ellipse";
  }
  return "ellipse";
}

void write(std::ostream& out, const GraphTopology& graph, const std::string& prefix, const std::string& indent,
           const GraphTopology::ExtraLabel& extra) {
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    const std::string name = prefix + std::to_string(i);
    out << fmt::format("{}{} [label=\"{}\", shape={}];\n", indent, name, escaped(label_of(node, i, extra)),
                       shape_of(node.type));
    if (node.child() == nullptr) continue;
    out << fmt::format("{}subgraph cluster_{} {{\n{}  label=\"child graph of {}\";\n", indent, name, indent, i);
    write(out, *node.child(), name + "_", indent + "  ", {});
    out << indent << "}\n";
  }
  for (const GraphEdge& edge : graph.edges()) {
    out << fmt::format("{}{}{} -> {}{}{};\n", indent, prefix, edge.from, prefix, edge.to,
                       edge.is_programmatic() ? " [style=dashed]" : "");
  }
}

}  // namespace

void GraphTopology::to_dot(std::ostream& out, const ExtraLabel& extra) const {
  out << "digraph graph_ {\n  node [fontname=\"monospace\"];\n";
  write(out, *this, "n", "  ", extra);
  out << "}\n";
}

}  // namespace pianola
