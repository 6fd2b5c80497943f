#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pianola {
class GraphTopology;
}

namespace pianola::parallel {

/// The nodes of a graph that was captured as one chain, with collectives beside it, or why it cannot be taken apart.
struct Chain {
  std::vector<std::uint32_t> order;  ///< Positions in GraphTopology::nodes().
  std::string refusal;               ///< Empty: `order` holds all nodes.
};

/// @param name_of  A node in words, with its operation: "kernel gemm of aten::mm".
/// @param is_collective  Whether a node is a collective's.
Chain chain_of(const GraphTopology& graph, const std::function<std::string(std::size_t node)>& name_of,
               const std::function<bool(std::size_t node)>& is_collective);

}  // namespace pianola::parallel
