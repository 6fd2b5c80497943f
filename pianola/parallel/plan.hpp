#pragma once
#include <pianola/parallel/branch_info.hpp>
#include <pianola/parallel/dependencies.hpp>
#include <pianola/parallel/lanes.hpp>
#include <pianola/parallel/unit.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pianola::parallel {

/// Node `to` runs behind node `from`. Positions as in Unit::nodes.
struct NodeEdge {
  std::uint32_t from;
  std::uint32_t to;

  friend bool operator==(const NodeEdge&, const NodeEdge&) = default;
};

/// How a step is rebuilt.
struct Plan {
  std::vector<Unit> units;
  std::vector<Dependency> dependencies;  ///< True ones and those of the lanes, reduced.
  std::vector<NodeEdge> edges;           ///< All edges of the new graph: within units and between them.
  Lanes lanes;
  CriticalPath critical;  ///< By true dependencies alone.
  double serial_us = 0;   ///< On one lane, with those that communicate beside it.

  /// Fills in what a plan knows: from `nodes` to `without_barriers_us`, and the obstacles.
  void describe(BranchInfo& info) const;
  /// By cause, what the longest path would be without it; see BranchInfo and Note [What a cause costs].
  double without_reuse_us = 0;
  double without_workspaces_us = 0;
  double without_barriers_us = 0;
  std::vector<BranchObstacle> obstacles;
};

/// Plans `units`, captured one after the other, for at most `lanes` lanes (1 to kMostLanes). Every node is in one unit, and
/// every unit has a node.
Plan make_plan(std::vector<Unit> units, int lanes);

}  // namespace pianola::parallel
